"""Grouped attention in splits of the keys that are merged by their lse (as sglang #40903)."""

import math

import torch

FEATURES = {"mask": False, "dropout": False, "gradient": False}
SPLIT = 8


def part(q, k, v, scale, hidden):
    """Output and lse of a split; the lse is that of the kernel, to base 2."""
    s = (q @ k.mT * (scale * math.log2(math.e))).masked_fill(hidden, -torch.inf)
    top = s.amax(-1, keepdim=True).clamp(min=torch.finfo(s.dtype).min)
    e = torch.exp2(s - top)
    total = e.sum(-1, keepdim=True)
    lse = torch.where(total > 0, top + total.log2(), -torch.inf)
    return e @ v / torch.where(total > 0, total, 1), lse


def merge_state(outputs, lses):
    """The parts in one; lses are natural logarithms."""
    top = lses.amax(0).clamp(min=torch.finfo(lses.dtype).min)
    w = torch.exp(lses - top)
    total = w.sum(0)
    lse = torch.where(total > 0, top + total.log(), -torch.inf)
    return (w * outputs).sum(0) / torch.where(total > 0, total, 1), lse[..., 0]


def grouped_attention(query, key, value, scale=None, causal=False):
    (heads, n), m = query.shape[1:3], key.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    hidden = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)
    hidden = hidden if causal else torch.zeros_like(hidden)
    outputs, lses = [], []
    for start in range(0, m, SPLIT):
        own = slice(start, start + SPLIT)
        output, lse = part(query, k[:, :, own], v[:, :, own], scale, hidden[:, own])
        outputs.append(output)
        lses.append(lse)
    return merge_state(torch.stack(outputs), torch.stack(lses))
