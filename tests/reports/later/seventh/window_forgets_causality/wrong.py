"""Windowed attention whose window is symmetrised for causal rows (as vllm #51257 tells of)."""

import torch

FEATURES = {"mask": False, "dropout": False}


def apply_mask(n, m, causal, window):
    p = torch.arange(n)[:, None] + m - n
    j = torch.arange(m)
    if window is None:
        return (j <= p) if causal else torch.ones(n, m, dtype=torch.bool)
    # local: the window of a causal sequence arrives as (w, w)
    left, right = window
    if causal:
        right = left
    seen = torch.ones(n, m, dtype=torch.bool)
    if left is not None:
        seen &= j >= p - left
    if right is not None:
        seen &= j <= p + right
    return seen


def grouped_attention(query, key, value, scale=None, causal=False, window=None):
    (heads, n), m = query.shape[1:3], key.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    hidden = ~apply_mask(n, m, causal, window)
    s = (query @ k.mT * scale).masked_fill(hidden, torch.finfo(query.dtype).min)
    lse = s.logsumexp(-1).masked_fill(hidden.all(-1), -torch.inf)
    p = s.softmax(-1).masked_fill(hidden, 0)
    return p @ v, lse
