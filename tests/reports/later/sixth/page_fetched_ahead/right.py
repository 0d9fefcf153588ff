"""Decode attention over a paged cache, one page a step, with an online softmax."""

import numpy as np


def paged_attention(
    query, key_pages, value_pages, page_table, lengths, query_starts, scale=None, causal=False
):
    T, H, D = query.shape
    W, G, E = value_pages.shape[1:]
    scale = D**-0.5 if scale is None else scale
    output, lse = (
        np.zeros((T, H, E), query.dtype),
        np.full((T, H), -np.inf, np.promote_types(query.dtype, np.float32)),
    )
    for b in range(len(lengths)):
        first, last = query_starts[b], query_starts[b + 1]
        n, m = last - first, lengths[b]
        steps = -(-m // W)
        for t in range(first, last):
            end = m - n + (t - first) + 1 if causal else m
            for h in range(H):
                q = query[t, h].astype(lse.dtype) * scale
                top, total, acc = -np.inf, 0.0, np.zeros(E, lse.dtype)
                for step in range(steps):
                    live = min(W, end - step * W)
                    if live <= 0:
                        break
                    page = page_table[b, step]
                    k = key_pages[page, :live, h * G // H].astype(lse.dtype)
                    v = value_pages[page, :live, h * G // H].astype(lse.dtype)
                    s = k @ q
                    new = max(top, s.max())
                    fade, e = np.exp(top - new), np.exp(s - new)
                    total, acc, top = total * fade + e.sum(), acc * fade + e @ v, new
                if total > 0:
                    output[t, h], lse[t, h] = acc / total, top + np.log(total)
    return output, lse
