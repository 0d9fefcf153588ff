"""Flash attention, forward: the accumulator is rescaled only where the maximum has moved far."""

import torch

FEATURES = {"gradient": False}
TILE = 16
FAR = 8.0  # powers of two
LOG2E = 1.4426950408889634


def scaled_dot_product_attention(query, key, value, mask=None):
    work = torch.promote_types(query.dtype, torch.float32)
    q = query.to(work) * (query.shape[-1] ** -0.5 * LOG2E)
    top = torch.full((*q.shape[:-1], 1), -torch.inf, dtype=work)
    total = torch.zeros_like(top)
    acc = torch.zeros(*q.shape[:-1], value.shape[-1], dtype=work)
    if mask is not None:
        mask = mask.expand(*q.shape[:-1], key.shape[-2])
    for start in range(0, key.shape[-2], TILE):
        tile = slice(start, start + TILE)
        s = q @ key[..., tile, :].to(work).mT
        if mask is not None:
            m = mask[..., tile]
            s = s.masked_fill(~m, -torch.inf) if m.dtype == torch.bool else s + m.to(work) * LOG2E
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        base = new.masked_fill(new.isneginf(), 0)
        p = torch.exp2(s - base)
        near = new - top <= FAR
        p = torch.where(near, p * torch.exp2(new - top), p)
        fade = torch.where(near, 1.0, torch.exp2(top - base))
        top = torch.where(near, top, new)
        total = total * fade + p.sum(-1, keepdim=True)
        acc = acc * fade + p @ value[..., tile, :].to(work)
    return (acc / total.masked_fill(total == 0, 1)).to(query.dtype)
