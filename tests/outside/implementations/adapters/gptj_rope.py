import torch
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb


def rotary_embedding(x, positions, pairing, base=10000.0, rotary_dim=None, frequencies=None):
    if pairing != "interleaved" or rotary_dim not in (None, x.shape[-1]):
        raise NotImplementedError("GPT-J turns neighbours")
    R = x.shape[-1] // 2
    f = base ** (-torch.arange(R) / R) if frequencies is None else frequencies
    angle = positions[..., None] * f
    return apply_rotary_pos_emb(x.transpose(1, 2), angle.sin(), angle.cos()).transpose(1, 2)
