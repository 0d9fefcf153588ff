import torch
from rotary_embedding_torch import apply_rotary_emb


def rotary_embedding(x, positions, pairing, base=10000.0, rotary_dim=None, frequencies=None):
    if pairing != "interleaved":
        raise NotImplementedError("it turns neighbours")
    R = (rotary_dim or x.shape[-1]) // 2
    f = base ** (-torch.arange(R) / R) if frequencies is None else frequencies
    angle = positions[..., None] * f.repeat_interleave(2)
    return apply_rotary_emb(angle[:, None], x)
