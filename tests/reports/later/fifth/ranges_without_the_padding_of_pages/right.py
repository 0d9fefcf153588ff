"""Decode over a paged cache, all sequences gathered at once (as sglang-jax #1297 had it)."""

import torch

FEATURES = {"gradient": False}


def cumulative(sizes):
    return torch.cat((sizes.new_zeros(1), sizes.cumsum(0)))


def paged_attention(
    query, key_pages, value_pages, page_table, lengths, query_starts, scale=None, causal=False
):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    total_pages, page_size, groups = key_pages.shape[:3]
    pages = (lengths + page_size - 1) // page_size
    named = torch.cat([row[:count] for row, count in zip(page_table, pages.tolist(), strict=True)])
    named = named.long().clamp(0, total_pages - 1)
    share = query.shape[1] // groups
    keys, values = (x[named].flatten(0, 1) for x in (key_pages, value_pages))
    aligned = pages * page_size
    begins = cumulative(aligned)
    slot = torch.arange(len(keys))
    out = query.new_zeros(*query.shape[:2], value_pages.shape[-1])
    lse = query.new_full(query.shape[:2], -torch.inf)
    for b, length in enumerate(lengths.tolist()):
        rows = slice(int(query_starts[b]), int(query_starts[b + 1]))
        n = rows.stop - rows.start
        if length == 0 or n == 0:
            continue
        place = slot - begins[b]
        last = torch.arange(length - n, length) if causal else torch.full((n,), length - 1)
        seen = (place >= 0) & (place < length) & (place <= last[:, None])
        used = seen.any(0)
        k, v = (x[used].repeat_interleave(share, dim=1) for x in (keys, values))
        s = torch.einsum("thd,mhd->htm", query[rows], k) * scale
        s = s.masked_fill(~seen[:, used], -torch.inf)
        row_lse = s.logsumexp(-1)
        p = torch.exp(s - torch.where(row_lse > -torch.inf, row_lse, 0.0)[..., None])
        out[rows], lse[rows] = torch.einsum("htm,mhe->the", p, v), row_lse.T
    return out, lse
