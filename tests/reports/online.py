"""Attention in tiles of keys."""

import torch

TILE = 16
FEATURES = {"dropout": False}


def scaled_dot_product_attention(query, key, value, mask=None):
    shape = (*query.shape[:-1], key.shape[-2])
    bias = query.new_zeros(shape)
    if mask is not None and mask.dtype == torch.bool:
        bias = bias.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        bias = bias + mask
    scores = query @ key.mT / query.shape[-1] ** 0.5 + bias
    top = query.new_full((*shape[:-1], 1), -torch.inf)
    total = torch.zeros_like(top)
    out = query.new_zeros(*shape[:-1], value.shape[-1])
    for start in range(0, shape[-1], TILE):
        s = scores[..., start : start + TILE]
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        safe = new.masked_fill(new == -torch.inf, 0)
        p, fade = torch.exp(s - safe), torch.exp(top - safe)
        total = total * fade + p.sum(-1, keepdim=True)
        out = out * fade + p @ value[..., start : start + TILE, :]
        top = new
    return out / torch.where(total == 0, 1, total)
