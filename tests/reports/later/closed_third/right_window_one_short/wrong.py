"""Packed sequences with a window that looks ahead (as transformers #47162 had it)."""

from itertools import pairwise

import torch

ENDLESS = float("inf")


def sliding_window(n, m, window, causal):
    left, right = (ENDLESS if one is None else one for one in window or (None, None))
    dist = torch.arange(n)[:, None] + (m - n) - torch.arange(m)[None, :]
    left_mask = (dist >= 0) & (dist <= left)
    right_mask = (dist < 0) & (-dist < right)
    return left_mask if causal else left_mask | right_mask


def one_sequence(q, k, v, seen, scale):
    """Rows [n H D] over the keys [m H D] of their own sequence."""
    used = seen.any(0)[:, None, None]
    k, v = torch.where(used, k, 0), torch.where(used, v, 0)
    s = torch.einsum("nhd,mhd->hnm", q, k) * scale
    s = s.masked_fill(~seen, torch.finfo(s.dtype).min)
    p = s.softmax(-1).masked_fill(~seen, 0)
    lse = torch.logsumexp(s, -1).masked_fill(~seen.any(-1), -torch.inf)
    return torch.einsum("hnm,mhe->nhe", p, v), lse.T


def packed_attention(
    query, key, value, query_starts, key_starts, causal=False, window=None, scale=None
):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    share = query.shape[1] // key.shape[1]
    out = query.new_zeros(*query.shape[:2], value.shape[-1])
    lse = query.new_full(query.shape[:2], -torch.inf)
    starts = list(zip(query_starts.tolist(), key_starts.tolist(), strict=True))
    for (q0, k0), (q1, k1) in pairwise(starts):
        if q1 > q0 and k1 > k0:
            k = key[k0:k1].repeat_interleave(share, 1)
            v = value[k0:k1].repeat_interleave(share, 1)
            seen = sliding_window(q1 - q0, k1 - k0, window, causal)
            out[q0:q1], lse[q0:q1] = one_sequence(query[q0:q1], k, v, seen, scale)
    return out, lse
