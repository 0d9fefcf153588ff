"""Decode over a paged cache, the table read through one pointer (as cutlass #2221 had it)."""

import torch

FEATURES = {"gradient": False}


def pages_of(flat, begin, count):
    """What the table says from there on; no read goes past its end."""
    return flat[torch.arange(begin, begin + count).clamp(max=len(flat) - 1)].long()


def paged_attention(query, key_pages, value_pages, page_table, lengths, query_starts, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    total_pages, width, groups = key_pages.shape[:3]
    share, stride_page_table = query.shape[1] // groups, total_pages
    out = query.new_zeros(*query.shape[:2], value_pages.shape[-1])
    lse = query.new_full(query.shape[:2], -torch.inf)
    flat = page_table.reshape(-1)
    for b, length in enumerate(lengths.tolist()):
        rows = slice(int(query_starts[b]), int(query_starts[b + 1]))
        if length == 0 or rows.start == rows.stop:
            continue
        own = pages_of(flat, b * stride_page_table, -(-length // width))
        own = own.clamp(0, total_pages - 1)
        k, v = (x[own].flatten(0, 1)[:length] for x in (key_pages, value_pages))
        k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
        s = torch.einsum("thd,mhd->thm", query[rows], k) * scale
        lse[rows] = s.logsumexp(-1)
        out[rows] = torch.einsum("thm,mhe->the", s.softmax(-1), v)
    return out, lse
