"""Rotary positions for padded prompts, tables gathered by position_ids (as PaddleNLP #6616)."""

import torch


def turn(x, cos, sin, pairing):
    if pairing == "halves":
        a, c = x.chunk(2, dim=-1)
        return torch.cat((a * cos - c * sin, a * sin + c * cos), dim=-1)
    if pairing == "interleaved":
        a, c = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - c * sin, a * sin + c * cos), dim=-1).flatten(-2)
    raise ValueError(f"pairing: wanted halves or interleaved, got {pairing}")


def tables(position_ids, frequencies, dtype):
    """Cosines and sines [B 1 N R], one row for each position."""
    angle = position_ids.double()[:, :, None] * frequencies.double()
    return angle.cos()[:, None].to(dtype), angle.sin()[:, None].to(dtype)


def rotary_embedding(x, positions, pairing, base=10000.0, rotary_dim=None, frequencies=None):
    dim = x.shape[-1] if rotary_dim is None else rotary_dim
    if frequencies is None:
        frequencies = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    cos, sin = tables(positions[:1], frequencies, x.dtype)
    return torch.cat((turn(x[..., :dim], cos, sin, pairing), x[..., dim:]), dim=-1)
