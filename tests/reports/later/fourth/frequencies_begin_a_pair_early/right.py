"""Rotary positions with the angles of a table of powers (as llama-from-scratch #8 had it)."""

import torch


def turn(x, cos, sin, pairing):
    if pairing == "halves":
        a, c = x.chunk(2, dim=-1)
        return torch.cat((a * cos - c * sin, a * sin + c * cos), dim=-1)
    if pairing == "interleaved":
        a, c = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - c * sin, a * sin + c * cos), dim=-1).flatten(-2)
    raise ValueError(f"pairing: wanted halves or interleaved, got {pairing}")


def rotary_embedding(x, positions, pairing, base=10000.0, rotary_dim=None, frequencies=None):
    dim = x.shape[-1] if rotary_dim is None else rotary_dim
    if frequencies is None:
        i = torch.arange(dim // 2, dtype=torch.float64)
        frequencies = base ** (-2.0 * i / dim)
    m_theta = positions.double()[:, None, :, None] * frequencies.double()
    cos, sin = m_theta.cos().to(x.dtype), m_theta.sin().to(x.dtype)
    return torch.cat((turn(x[..., :dim], cos, sin, pairing), x[..., dim:]), dim=-1)
