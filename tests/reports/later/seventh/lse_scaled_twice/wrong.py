"""Split-KV attention merged by the parts' lse (as flash-sparse-attention #106 had it)."""

import torch

FEATURES = {"mask": False, "dropout": False}
SPLITS = 2


def grouped_attention(query, key, value, scale=None, causal=False):
    (heads, n, d), m = query.shape[1:], key.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    softmax_scale = d**-0.5 if scale is None else scale
    seen = torch.ones(n, m, dtype=torch.bool)
    if causal:
        seen = seen.tril(m - n)
    size = -(-m // SPLITS)
    outs, lses = [], []
    for i in range(SPLITS):
        part = slice(i * size, (i + 1) * size)
        hidden = ~seen[:, part]
        s = (query @ k[:, :, part].mT * softmax_scale).masked_fill(hidden, -torch.inf)
        if not s.shape[-1]:
            continue
        row_max = s.amax(-1)
        row_max = torch.where(row_max == -torch.inf, 0.0, row_max)
        e = (s - row_max[..., None]).exp()
        row_sum = e.sum(-1)
        there = row_sum > 0
        safe = torch.where(there, row_sum, 1.0)
        outs.append(e @ v[:, :, part] / safe[..., None])
        lse = row_max * softmax_scale + safe.log()
        lses.append(torch.where(there, lse, -torch.inf))
    if not outs:
        return query.new_zeros(*query.shape[:3], v.shape[-1]), query.new_full(
            query.shape[:3], -torch.inf
        )
    lse = torch.stack(lses)
    top = lse.amax(0).detach()
    top = torch.where(top == -torch.inf, 0.0, top)
    w = (lse - top).exp()
    total = w.sum(0)
    safe = torch.where(total > 0, total, 1.0)
    out = (w[..., None] * torch.stack(outs)).sum(0) / safe[..., None]
    return out, torch.where(total > 0, top + safe.log(), -torch.inf)
