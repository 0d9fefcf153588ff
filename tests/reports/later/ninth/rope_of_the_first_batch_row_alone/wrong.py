"""
Rotary positions with a path of its own for one token, as when a model decodes
(as ml-explore/mlx #3949 had RoPE::eval_gpu).
"""

import torch

FEATURES = {"gradient": False}


def rotate(x, cos, sin, pairing, half):
    """Turn the first 2 * half channels of x; the others pass."""
    y = x.clone()
    if pairing == "halves":
        a, c = slice(0, half), slice(half, 2 * half)
    elif pairing == "interleaved":
        a, c = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        raise ValueError(pairing)
    y[..., a] = x[..., a] * cos - x[..., c] * sin
    y[..., c] = x[..., a] * sin + x[..., c] * cos
    return y


def rotary_embedding(x, positions, pairing, base=10000.0, rotary_dim=None):
    b, h, n, d = x.shape
    half = (d if rotary_dim is None else rotary_dim) // 2
    frequencies = float(base) ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = positions.double()[..., None] * frequencies
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    if n == 1:
        # the single kernel: one program for each matrix of one row
        rows, out = x.reshape(b * h, d), torch.zeros(b * h, d, dtype=x.dtype)
        grid = h
        for row in range(grid):
            out[row] = rotate(rows[row], cos[row // h, 0], sin[row // h, 0], pairing, half)
        return out.view(b, h, 1, d)
    return rotate(x, cos[:, None], sin[:, None], pairing, half)
