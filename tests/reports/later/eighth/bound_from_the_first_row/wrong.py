"""Fused attention, a block of rows and a block of keys at a time (after rocMLIR #2165)."""

import numpy as np

FEATURES = {"mask": False, "dropout": False}
N_PER_BLOCK = 8  # rows
M_PER_BLOCK = 4  # keys


def grouped_attention(query, key, value, scale=None, causal=False):
    batch, heads, seq_q, d = query.shape
    kv_heads, seq_k, e = value.shape[1:]
    scale = query.dtype.type(d**-0.5 if scale is None else scale)
    out = np.zeros((batch, heads, seq_q, e), query.dtype)
    lse = np.full((batch, heads, seq_q), -np.inf, query.dtype)
    for b, h, n_block in np.ndindex(batch, heads, -(-seq_q // N_PER_BLOCK)):
        g = h * kv_heads // heads
        rows = np.arange(n_block * N_PER_BLOCK, min((n_block + 1) * N_PER_BLOCK, seq_q))
        position = rows + seq_k - seq_q
        effective = seq_k
        if causal:
            # no key behind the last row of this block is needed
            max_row_of_block = n_block * N_PER_BLOCK + seq_k - seq_q
            effective = min(seq_k, max_row_of_block + 1)
        running_max = np.full((len(rows), 1), -np.inf, query.dtype)
        running_sum = np.zeros((len(rows), 1), query.dtype)
        acc = np.zeros((len(rows), e), query.dtype)
        for block in range(-(-effective // M_PER_BLOCK)):
            j = np.arange(block * M_PER_BLOCK, min((block + 1) * M_PER_BLOCK, seq_k))
            s = query[b, h, rows] @ key[b, g, j].T * scale
            if causal:
                s = np.where(j <= position[:, None], s, -np.inf).astype(query.dtype)
            new_max = np.maximum(running_max, s.max(-1, keepdims=True))
            safe = np.where(np.isneginf(new_max), 0, new_max).astype(query.dtype)
            p, correction = np.exp(s - safe), np.exp(running_max - safe)
            running_sum = running_sum * correction + p.sum(-1, keepdims=True)
            acc = acc * correction + p @ value[b, g, j]
            running_max = new_max
        there = running_sum[:, 0] > 0
        out[b, h, rows[there]] = acc[there] / running_sum[there]
        lse[b, h, rows[there]] = (running_max + np.log(np.where(running_sum > 0, running_sum, 1)))[
            there, 0
        ]
    return out, lse
