import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb


def rotary_embedding(x, positions, pairing, base=10000.0, rotary_dim=None, frequencies=None):
    if pairing != "halves" or rotary_dim not in (None, x.shape[-1]):
        raise NotImplementedError("Llama turns halves of all channels")
    R = x.shape[-1] // 2
    f = base ** (-torch.arange(R) / R) if frequencies is None else frequencies
    angle = positions[..., None] * torch.cat([f, f])
    return apply_rotary_pos_emb(x, x, angle.cos(), angle.sin())[0]
