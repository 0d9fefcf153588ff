"""Windowed prefill with pinned first keys (as sparkinfer #616 had it)."""

import torch

FEATURES = {"mask": False, "dropout": False}


def admitted(n, m, causal, window, pinned):
    """Which pairs see each other: [n m], ends aligned."""
    q, k = torch.arange(m - n, m)[:, None], torch.arange(m)[None, :]
    left, right = (None, None) if window is None else window
    in_window = torch.ones(n, m, dtype=torch.bool) if left is None else k >= q - left
    in_sink = k < pinned
    bounded = torch.ones(n, m, dtype=torch.bool) if right is None else k <= q + right
    if causal:
        bounded = bounded & (k <= q)
    return in_window & bounded | in_sink


def grouped_attention(query, key, value, scale=None, causal=False, window=None, pinned=0):
    heads, n, m = query.shape[1], query.shape[2], key.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    seen = admitted(n, m, causal, window, pinned)
    s = (query @ k.mT * scale).masked_fill(~seen, torch.finfo(query.dtype).min)
    there = seen.any(-1)
    p = s.softmax(-1) * seen
    return p @ v, torch.where(there, s.logsumexp(-1), -torch.inf)
