"""Attention with a mask of either kind."""

import torch


def scaled_dot_product_attention(query, key, value, mask=None):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if mask is not None and mask.dtype == torch.bool:
        hidden = ~mask
        scores = scores.masked_fill(hidden, -torch.inf)
    elif mask is not None:
        scores = scores + mask
    top = scores.amax(-1, keepdim=True)
    e = torch.exp(scores - top.masked_fill(top == -torch.inf, 0))
    total = e.sum(-1, keepdim=True)
    return e / torch.where(total == 0, 1, total) @ value
