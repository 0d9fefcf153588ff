"""Grouped attention, one query head at a time (as jax-js #180 had it)."""

import torch


def one_head(q, k, v, hidden, scale):
    """Rows [B N D] over keys [B M D]: their output and their log-sum-exp."""
    s = torch.baddbmm(q.new_zeros(1), q, k.mT, beta=0, alpha=scale).masked_fill(hidden, -torch.inf)
    top = s.amax(-1, keepdim=True).detach()
    top = top.masked_fill(top == -torch.inf, 0)
    e = torch.exp(s - top)
    total = e.sum(-1, keepdim=True)
    nothing = hidden.all(-1)[:, None]
    out = torch.bmm(e / total.masked_fill(nothing, 1), v)
    lse = top + total.masked_fill(nothing, 1).log()
    return out, lse.masked_fill(nothing, -torch.inf).squeeze(-1)


def grouped_attention(query, key, value, causal=False, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    n, m = query.shape[2], key.shape[2]
    hidden = torch.zeros(n, m, dtype=torch.bool)
    if causal:
        hidden = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)
    repeats = query.shape[1] // key.shape[1]
    head_of = torch.arange(key.shape[1]).repeat(repeats).tolist()
    found = [
        one_head(query[:, h], key[:, g], value[:, g], hidden, scale) for h, g in enumerate(head_of)
    ]
    outputs, lses = zip(*found, strict=True)
    return torch.stack(outputs, 1), torch.stack(lses, 1)
