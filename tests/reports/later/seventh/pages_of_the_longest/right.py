"""Decoding over pages with a window, in partitions of a page (as openvino #38034 had them)."""

import itertools
import math

import torch

FEATURES = {"gradient": False}


def partitions(lengths, span, page):
    """How many pages each sequence of the batch is dispatched: one number for all of them."""
    longest = max(lengths)
    if span is None:
        return math.ceil(longest / page)
    return min(math.ceil(longest / page), math.ceil(span / page) + 1)


def paged_attention(
    query,
    key_pages,
    value_pages,
    page_table,
    lengths,
    query_starts,
    scale=None,
    causal=False,
    window=None,
):
    (tokens, heads, d), (pages, page, groups, e) = query.shape, value_pages.shape
    scale = d**-0.5 if scale is None else scale
    left, right = window if window is not None else (None, None)
    output = query.new_zeros(tokens, heads, e)
    lse = query.new_full((tokens, heads), -torch.inf)
    starts, sizes = query_starts.tolist(), lengths.tolist()
    rows = max(b - a for a, b in itertools.pairwise(starts))
    span = None if left is None else left + rows
    count = partitions(sizes, span, page)
    for b, length in enumerate(sizes):
        t = slice(starts[b], starts[b + 1])
        n = t.stop - t.start
        if n == 0 or length == 0:
            continue
        # pages in front of the window are skipped
        first = 0 if span is None else max(0, length - span) // page
        j = torch.arange(first * page, min(length, (first + count) * page))
        p = torch.arange(n)[:, None] + length - n
        seen = torch.ones(n, len(j), dtype=torch.bool)
        if causal:
            seen &= j <= p
        if left is not None:
            seen &= j >= p - left
        if right is not None:
            seen &= j <= p + right
        z = page_table[b, j // page].long().clamp(0, pages - 1)
        k, v = (
            torch.where(seen.any(0)[:, None, None], x[z, j % page], 0.0).repeat_interleave(
                heads // groups, 1
            )
            for x in (key_pages, value_pages)
        )
        s = torch.einsum("nhd,jhd->nhj", query[t], k) * scale
        s = s.masked_fill(~seen[:, None], -torch.inf)
        lse[t] = s.logsumexp(-1)
        w = (s - torch.where(lse[t] == -torch.inf, 0.0, lse[t])[..., None]).exp()
        output[t] = torch.einsum("nhj,jhe->nhe", w, v)
    return output, lse
