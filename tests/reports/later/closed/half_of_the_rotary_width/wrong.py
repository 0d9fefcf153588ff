"""Rotary embedding with a partial factor (as get_rope of vllm #41185)."""

import torch

PARTIAL_ROTARY_FACTOR = 0.5


def angles(positions, width, base):
    rate = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return positions.double()[..., None] * rate  # [B N R]


def rotary_embedding(x, positions, pairing, base=10000.0, rotary_dim=None):
    whole = x.shape[-1] if rotary_dim is None else rotary_dim
    width = max(2, int(whole * PARTIAL_ROTARY_FACTOR) // 2 * 2)
    at = angles(positions, width, base)[:, None]
    cos, sin = at.cos().to(x.dtype), at.sin().to(x.dtype)
    turned, passed = x[..., :width], x[..., width:]
    if pairing == "halves":
        a, c = turned.chunk(2, dim=-1)
        y = torch.cat([a * cos - c * sin, a * sin + c * cos], -1)
    else:
        a, c = turned[..., 0::2], turned[..., 1::2]
        y = torch.stack([a * cos - c * sin, a * sin + c * cos], -1).flatten(-2)
    return torch.cat([y, passed], -1)
