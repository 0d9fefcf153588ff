"""Rotary positions by a fused call that takes a mode (as vllm-ascend #12765 had it)."""

import torch


def npu_mrope(x, cos, sin, rotary_mode):
    if rotary_mode == "half":
        a, c = x.chunk(2, dim=-1)
        return torch.cat((a * cos - c * sin, c * cos + a * sin), dim=-1)
    a, c = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - c * sin, c * cos + a * sin), dim=-1).flatten(-2)


def rotary_embedding(x, positions, pairing, base=10000.0, rotary_dim=None, frequencies=None):
    dim = x.shape[-1] if rotary_dim is None else rotary_dim
    if frequencies is None:
        frequencies = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = positions.double()[:, None, :, None] * frequencies.double()
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    turned = npu_mrope(
        x[..., :dim], cos, sin, rotary_mode="half" if pairing == "halves" else "interleave"
    )
    return torch.cat((turned, x[..., dim:]), dim=-1)
