"""Chunked prefill: parts with softmax statistics, then merged (after TensorRT-LLM #19112)."""

import numpy as np

FEATURES = {"mask": False, "dropout": False}
CHUNK = 8


def fmha(q, k, v, seen, scale):
    """One chunk: its output, and the statistics (maximum, sum) of each row."""
    bmm1 = np.where(seen, q @ k.T, -np.inf)
    p_max = bmm1.max(-1, keepdims=True)
    # the raw maximum is kept, the scale is applied within the exponential alone
    p = np.exp((bmm1 - np.where(np.isneginf(p_max), 0, p_max)) * scale)
    p_sum = p.sum(-1, keepdims=True)
    out = p @ v / np.where(p_sum == 0, 1, p_sum)
    return out, np.where(np.isneginf(p_max), -np.inf, p_max * scale).astype(q.dtype), p_sum


def merge(parts):
    top = np.max([p_max for _, p_max, _ in parts], axis=0)
    top = np.where(np.isneginf(top), 0, top)
    weights = [p_sum * np.exp(p_max - top) for _, p_max, p_sum in parts]
    total = np.sum(weights, axis=0)
    out = sum(w * o for w, (o, _, _) in zip(weights, parts, strict=False)) / np.where(
        total == 0, 1, total
    )
    with np.errstate(divide="ignore"):
        return out, (top + np.log(total))[..., 0]


def grouped_attention(query, key, value, scale=None, causal=False):
    batch, heads, n, d = query.shape
    kv_heads, m, e = value.shape[1:]
    scale = query.dtype.type(d**-0.5 if scale is None else scale)
    out = np.zeros((batch, heads, n, e), query.dtype)
    lse = np.zeros((batch, heads, n), query.dtype)
    row = np.arange(n)[:, None] + m - n
    for b, h in np.ndindex(batch, heads):
        k, v = key[b, h * kv_heads // heads], value[b, h * kv_heads // heads]
        parts = []
        for start in range(0, m, CHUNK):
            j = np.arange(start, min(start + CHUNK, m))
            seen = (j <= row) if causal else np.ones((n, len(j)), bool)
            parts.append(fmha(query[b, h], k[j], v[j], seen, scale))
        out[b, h], lse[b, h] = merge(parts)
    return out, lse
