"""Grouped attention in chunks, as Llama 4's (as amd-shark-ai #1452 had it)."""

import torch


def chunked(n, m, causal, chunk):
    row = torch.arange(n)[:, None] + m - n
    col = torch.arange(m)[None, :]
    seen = col <= row if causal else torch.ones(n, m, dtype=torch.bool)
    if chunk is None:
        return seen
    start_index = 0
    of_row = torch.arange(start_index, start_index + n)[:, None] // chunk
    return seen & (of_row == col // chunk)


def grouped_attention(query, key, value, causal=False, chunk=None):
    share = query.shape[1] // key.shape[1]
    k, v = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    s = query @ k.mT * query.shape[-1] ** -0.5
    chunk = None if chunk is None else int(chunk)
    seen = chunked(query.shape[2], key.shape[2], causal, chunk)
    s = s.masked_fill(~seen, torch.finfo(s.dtype).min)
    p = s.softmax(-1).masked_fill(~seen, 0)
    lse = torch.logsumexp(s, -1).masked_fill(~seen.any(-1), -torch.inf)
    return p @ v, lse
