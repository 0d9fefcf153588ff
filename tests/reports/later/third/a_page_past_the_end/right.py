"""Decode attention over pages, by indptr and last_page_len (as pegainfer #291 had it)."""

import torch


def plan(length, width, room):
    """How many pages of its row of the table a sequence has, and the slots used of the last."""
    pages = (length - 1) // width + 1
    return min(pages, room), (length - 1) % width + 1


def keys_of(pages, table, count, last):
    """The keys that stand in the pages of one sequence, end to end."""
    own = table[:count].long().clamp(0, len(pages) - 1)
    flat = pages[own].flatten(0, 1)
    return flat[: (count - 1) * pages.shape[1] + last]


def paged_attention(query, key_pages, value_pages, page_table, lengths, query_starts, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    share = query.shape[1] // key_pages.shape[2]
    out = query.new_zeros(*query.shape[:2], value_pages.shape[-1])
    lse = torch.full(
        query.shape[:2], -torch.inf, dtype=torch.promote_types(query.dtype, torch.float32)
    )
    for b, length in enumerate(lengths.tolist()):
        rows = slice(int(query_starts[b]), int(query_starts[b + 1]))
        if length == 0 or rows.start == rows.stop:
            continue
        count, last = plan(length, key_pages.shape[1], page_table.shape[1])
        k = keys_of(key_pages, page_table[b], count, last).repeat_interleave(share, 1)
        v = keys_of(value_pages, page_table[b], count, last).repeat_interleave(share, 1)
        s = torch.einsum("thd,mhd->thm", query[rows], k) * scale
        lse[rows] = torch.logsumexp(s.to(lse.dtype), -1)
        out[rows] = torch.einsum("thm,mhe->the", s.softmax(-1), v)
    return out, lse
