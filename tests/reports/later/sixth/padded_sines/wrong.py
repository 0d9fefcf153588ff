"""Rotary positions by tables of sines and cosines as wide as the head."""

import torch


def rotary_embedding(x, positions, pairing, base=10000.0, rotary_dim=None):
    work = torch.promote_types(x.dtype, torch.float32)
    width = x.shape[-1]
    rotary_dim = width if rotary_dim is None else rotary_dim
    R = rotary_dim // 2
    frequency = base ** (-torch.arange(R, dtype=torch.float64) / R)
    angle = positions[:, None, :, None].double() * frequency
    rest = width - rotary_dim
    if pairing == "halves":
        angle = torch.cat([angle, angle], -1)
        first, second = torch.arange(R), torch.arange(R, 2 * R)
    else:
        angle = angle.repeat_interleave(2, -1)
        first, second = torch.arange(0, 2 * R, 2), torch.arange(1, 2 * R, 2)
    cos = torch.nn.functional.pad(angle.cos(), (0, rest), value=1.0).to(work)
    sin = torch.nn.functional.pad(angle.sin(), (0, rest), value=1.0).to(work)
    turned = x.to(work).clone()
    turned[..., first], turned[..., second] = -x[..., second].to(work), x[..., first].to(work)
    return (x.to(work) * cos + turned * sin).to(x.dtype)
