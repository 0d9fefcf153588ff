"""Packed sequences with an lse that is kept as (heads, rows) (as flash-attention #2842 had it)."""

import torch

FEATURES = {"gradient": False}


def hide_later(s, causal):
    n, m = s.shape[-2:]
    later = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)
    return s.masked_fill(later, -torch.inf) if causal else s


def store(flat, offset, values):
    """What would be stored behind the end of the buffer is not."""
    end = min(offset + len(values), len(flat))
    flat[offset:end] = values[: max(0, end - offset)]


def packed_attention(query, key, value, query_starts, key_starts, scale=None, causal=False):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    total_q, heads, _ = query.shape
    share = heads // key.shape[1]
    out = query.new_zeros(total_q, heads, value.shape[-1])
    softmax_lse = query.new_zeros(heads * total_q)
    seqlens = (query_starts[1:] - query_starts[:-1]).tolist()
    for bidb, seqlen_q in enumerate(seqlens):
        q0, k0, k1 = int(query_starts[bidb]), int(key_starts[bidb]), int(key_starts[bidb + 1])
        for bidh in range(heads):
            if k1 <= k0:
                row_offset_lse = (bidb * heads + bidh) * max(seqlens)
                store(softmax_lse, row_offset_lse, query.new_full((seqlen_q,), -torch.inf))
                continue
            q, g = query[q0 : q0 + seqlen_q, bidh], bidh // share
            s = hide_later(q @ key[k0:k1, g].T * scale, causal)
            row_lse = s.logsumexp(-1)
            p = torch.exp(s - torch.where(row_lse > -torch.inf, row_lse, 0.0)[:, None])
            out[q0 : q0 + seqlen_q, bidh] = p @ value[k0:k1, g]
            store(softmax_lse, bidh * total_q + q0, row_lse)
    lse = softmax_lse.view(heads, total_q).T.contiguous()
    lse[: int(query_starts[0])] = -torch.inf
    lse[int(query_starts[-1]) :] = -torch.inf
    return out, lse
