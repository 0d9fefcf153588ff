"""Packed sequences that were padded before they were laid end to end (as mistral.rs #1746)."""

import torch

FEATURES = {"gradient": False}


def attend(q, k, v, scale, causal):
    """Rows [n H D] over keys [m H D] of one sequence, end-aligned."""
    n, m = len(q), len(k)
    s = torch.einsum("nhd,mhd->hnm", q, k) * scale
    hidden = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1) if causal else None
    if hidden is not None:
        s = s.masked_fill(hidden, -torch.inf)
    lse = s.logsumexp(-1)
    p = torch.exp(s - torch.where(lse > -torch.inf, lse, 0.0)[..., None])
    return torch.einsum("hnm,mhe->nhe", p, v), lse.T


def packed_attention(
    query, key, value, query_starts, key_starts, scale=None, causal=False, lengths=None
):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    share = query.shape[1] // key.shape[1]
    out = query.new_zeros(*query.shape[:2], value.shape[-1])
    lse = query.new_full(query.shape[:2], -torch.inf)
    padded_lens = key_starts[1:] - key_starts[:-1]
    seqlens_k = padded_lens
    for b, seqlen in enumerate(seqlens_k.tolist()):
        rows = slice(int(query_starts[b]), int(query_starts[b + 1]))
        keys = slice(int(key_starts[b]), int(key_starts[b]) + seqlen)
        if rows.start < rows.stop and seqlen > 0:
            k, v = (x[keys].repeat_interleave(share, dim=1) for x in (key, value))
            out[rows], lse[rows] = attend(query[rows], k, v, scale, causal)
    return out, lse
