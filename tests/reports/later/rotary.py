"""Rotary positions of the first channels of each head, from one table of cosines and sines."""

import torch

FEATURES = {"gradient": False}
TABLES = {}


def rotary_embedding(x, positions, pairing, base=10000.0, rotary_dim=None, frequencies=None):
    width = x.shape[-1] if rotary_dim is None else rotary_dim
    half = width // 2
    if frequencies is None:
        frequencies = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = positions[:, None, :, None].double() * frequencies.double()
    table = torch.cat([angles.cos(), angles.sin()], -1).to(x.dtype)
    cos, sin = table[..., :half], table[..., half:]
    first, second = slice(0, half), slice(half, width)
    if pairing == "interleaved":
        first, second = slice(0, width, 2), slice(1, width, 2)
    a, c = x[..., first], x[..., second]
    y = x.clone()
    y[..., first], y[..., second] = a * cos - c * sin, a * sin + c * cos
    return y
