"""Grouped attention with a mask that is built by triangles (as transformers #41228 had it)."""

import torch

FEATURES = {"mask": False, "dropout": False}


def build_attention_mask(seqlen_q, seqlen_k, causal, window):
    """0 where a key is seen and minus infinity elsewhere."""
    minus_inf = torch.full((seqlen_q, seqlen_k), -torch.inf)
    masked = torch.zeros(seqlen_q, seqlen_k)
    if causal:
        causal_diagonal = seqlen_k - seqlen_q + 1
        masked = torch.triu(minus_inf, diagonal=causal_diagonal)
    left, right = window if window is not None else (None, None)
    if left is not None:
        sliding_diagonal = seqlen_k - seqlen_q - (left + 1)
        masked = masked + torch.tril(minus_inf, diagonal=sliding_diagonal)
    if right is not None:
        masked = masked + torch.triu(minus_inf, diagonal=seqlen_k - seqlen_q + right + 1)
    return masked


def grouped_attention(query, key, value, scale=None, causal=False, window=None):
    (heads, n), m = query.shape[1:3], key.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    hidden = build_attention_mask(n, m, causal, window) == -torch.inf
    s = (query @ k.mT * scale).masked_fill(hidden, torch.finfo(query.dtype).min)
    lse = s.logsumexp(-1).masked_fill(hidden.all(-1), -torch.inf)
    p = s.softmax(-1).masked_fill(hidden, 0)
    return p @ v, lse
