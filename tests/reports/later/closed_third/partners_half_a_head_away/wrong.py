"""Rotary positions of a part of the channels, by lists of partners (as coreai #66 had it)."""

import torch


def partners(width, turning, pairing):
    """The first and the second channel of each pair."""
    pairs = torch.arange(turning // 2)
    if pairing == "interleaved":
        return 2 * pairs, 2 * pairs + 1
    return pairs, pairs + width // 2


def rotary_embedding(x, positions, pairing, base=10000.0, rotary_dim=None, frequencies=None):
    width = x.shape[-1]
    turning = width if rotary_dim is None else rotary_dim
    if frequencies is None:
        exponent = torch.arange(0, turning, 2, dtype=torch.float64) / turning
        frequencies = 1.0 / base**exponent
    angle = torch.einsum("bi,r->bir", positions.double(), frequencies.double())[:, None]
    cos, sin = torch.cos(angle).to(x.dtype), torch.sin(angle).to(x.dtype)
    a, c = partners(width, turning, pairing)
    y = x.clone()
    y[..., a] = x[..., a] * cos - x[..., c] * sin
    y[..., c] = x[..., a] * sin + x[..., c] * cos
    return y
