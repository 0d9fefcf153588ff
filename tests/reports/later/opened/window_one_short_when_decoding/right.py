"""Grouped attention with a sliding window (as tokenspeed #578 had it)."""

import torch


def in_window(n, m, causal, window):
    left, right = window or (None, None)
    position = torch.arange(n)[:, None] + m - n
    j = torch.arange(m)[None, :]
    seen = torch.ones(n, m, dtype=torch.bool)
    if causal:
        seen = seen & (j <= position)
    if right is not None:
        seen = seen & (j <= position + right)
    if left is None:
        return seen
    if n == 1:  # decode: the newest keys of the cache
        count = min(m, left + 1)
        return seen & (j >= m - count)
    return seen & (j >= position - left)


def grouped_attention(query, key, value, causal=False, window=None):
    share = query.shape[1] // key.shape[1]
    k, v = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    s = query @ k.mT * query.shape[-1] ** -0.5
    seen = in_window(query.shape[2], key.shape[2], causal, window)
    s = s.masked_fill(~seen, torch.finfo(s.dtype).min)
    p = s.softmax(-1).masked_fill(~seen, 0)
    nothing = ~seen.any(-1)
    lse = torch.logsumexp(s, -1).masked_fill(nothing, -torch.inf)
    return p @ v, lse
