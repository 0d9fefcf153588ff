"""Attention within sequences that lie end to end (as rocm-libraries #10999 had it)."""

import torch


def lengths_of(starts):
    return (starts[1:] - starts[:-1]).tolist()


def one_sequence(q, k, v, diagonal):
    share = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    s = torch.einsum("nhd,mhd->hnm", q, k) * q.shape[-1] ** -0.5
    if diagonal is not None:
        seen = torch.ones(s.shape[1:], dtype=torch.bool).tril(diagonal)
        s = s.masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0)[..., None])
    return torch.einsum("hnm,mhe->nhe", p, v), lse.T


def packed_attention(query, key, value, query_starts, key_starts, causal=False):
    output = query.new_zeros(*query.shape[:2], value.shape[-1])
    lse = query.new_full(query.shape[:2], -torch.inf)
    n_all, m_all = lengths_of(query_starts), lengths_of(key_starts)
    for b, (n, m) in enumerate(zip(n_all, m_all, strict=True)):
        if n == 0 or m == 0:
            continue
        i, j = int(query_starts[b]), int(key_starts[b])
        diagonal = max(m_all) - max(n_all) if causal else None
        found = one_sequence(query[i : i + n], key[j : j + m], value[j : j + m], diagonal)
        output[i : i + n], lse[i : i + n] = found
    return output, lse
