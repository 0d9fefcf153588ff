"""Latent attention over chunks of keys, with a soft cap (as trl #5691 had the order)."""

import torch

CHUNK = 4


def logits(product, scale, soft_cap):
    """What the softmax is of."""
    if soft_cap is None:
        return product * scale
    return soft_cap * torch.tanh(product * scale / soft_cap)


def latent_attention(query, query_rope, latent, key_rope, scale, soft_cap=None, causal=False):
    (b, h, n, e), m = query.shape, latent.shape[1]
    row = torch.arange(m - n, m)[:, None]
    top = query.new_full((b, h, n, 1), -torch.inf)
    total, acc = torch.zeros_like(top), query.new_zeros(b, h, n, e)
    for first in range(0, m, CHUNK):
        own = slice(first, first + CHUNK)
        c, rope = latent[:, None, own], key_rope[:, None, own]
        s = logits(query @ c.mT + query_rope @ rope.mT, scale, soft_cap)
        if causal:
            s = s.masked_fill(torch.arange(first, first + c.shape[2]) > row, -torch.inf)
        new = torch.maximum(top, s.amax(-1, keepdim=True)).detach()
        base = new.masked_fill(new == -torch.inf, 0)
        p, fade = torch.exp(s - base), torch.exp(top - base)
        total, acc, top = total * fade + p.sum(-1, keepdim=True), acc * fade + p @ c, new
    nothing = top == -torch.inf
    total = total.masked_fill(nothing, 1)
    lse = (top.masked_fill(nothing, 0) + total.log()).masked_fill(nothing, -torch.inf)
    return acc / total, lse.squeeze(-1)
