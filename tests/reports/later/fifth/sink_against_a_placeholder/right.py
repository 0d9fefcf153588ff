"""Grouped attention in splits, the sink added by the first of them (as TensorRT-LLM #19220)."""

import torch

FEATURES = {"mask": False, "dropout": False, "gradient": False}
SPLIT, LOWEST = 8, -1e5


def seen_by(n, m, causal, window):
    p, j = torch.arange(m - n, m)[:, None], torch.arange(m)[None, :]
    left, right = window if window is not None else (None, None)
    seen = j <= p if causal else torch.ones(n, m, dtype=torch.bool)
    seen = seen if left is None else seen & (j >= p - left)
    return seen if right is None else seen & (j <= p + right)


def one_split(q, k, v, seen, scale, sinks):
    """Row maximum, row sum and accumulator over the keys of a split."""
    s = (q @ k.mT * scale).masked_fill(~seen, -torch.inf)
    row_max = s.amax(-1, keepdim=True).clamp(min=LOWEST)
    if sinks is not None:
        row_max = torch.maximum(row_max, sinks)
    p = torch.exp(s - row_max)
    row_sum = p.sum(-1, keepdim=True)
    if sinks is not None:
        row_sum = row_sum + torch.exp(sinks - row_max)
    return row_max, row_sum, p @ v


def grouped_attention(query, key, value, sink=None, scale=None, causal=False, window=None):
    (heads, n), m = query.shape[1:3], key.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    seen, parts = seen_by(n, m, causal, window), []
    for start in range(0, m, SPLIT):
        own = slice(start, start + SPLIT)
        first = None if sink is None or start > 0 else sink[:, None, None].to(query.dtype)
        parts.append(one_split(query, k[:, :, own], v[:, :, own], seen[:, own], scale, first))
    row_max, row_sum, acc = (torch.stack(x) for x in zip(*parts, strict=True))
    top = row_max.amax(0)
    fade = torch.exp(row_max - top)
    total, out = (row_sum * fade).sum(0), (acc * fade).sum(0)
    lse = torch.where(total > 0, top + torch.log(total), -torch.inf)[..., 0]
    return out / torch.where(total > 0, total, 1.0), lse
