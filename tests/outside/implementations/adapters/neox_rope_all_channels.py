import torch
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb


def rotary_embedding(x, positions, pairing, base=10000.0, rotary_dim=None, frequencies=None):
    if pairing != "halves" or frequencies is not None:
        raise NotImplementedError("GPT-NeoX turns halves, by its base")
    turning = rotary_dim or x.shape[-1]
    f = base ** (-torch.arange(0, turning, 2) / x.shape[-1])
    angle = positions[..., None] * torch.cat([f, f])
    return apply_rotary_pos_emb(x, x, angle.cos(), angle.sin())[0]
