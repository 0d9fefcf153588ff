"""Attention over pages: one kernel for decoding, one for prompts (as accel #10 had it)."""

import torch


def gather(pages, table, length):
    """The first keys of a sequence, by its row of the table."""
    j = torch.arange(length)
    return pages[table[j // pages.shape[1]].long(), j % pages.shape[1]]


def attend(q, k, v):
    share = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    s = torch.einsum("nhd,mhd->hnm", q, k) * q.shape[-1] ** -0.5
    lse = torch.logsumexp(s, -1)
    out = torch.einsum("hnm,mhe->nhe", torch.exp(s - lse[..., None]), v)
    return out, lse.T


def paged_attention(query, key_pages, value_pages, page_table, lengths, query_starts):
    output = query.new_zeros(*query.shape[:2], value_pages.shape[-1])
    lse = query.new_full(query.shape[:2], -torch.inf)
    for b, length in enumerate(lengths.tolist()):
        rows = slice(int(query_starts[b]), int(query_starts[b + 1]))
        if length == 0 or rows.start == rows.stop:
            continue
        table = page_table[b]
        if rows.stop - rows.start > 1:  # a prompt
            table = page_table[b]
        k, v = gather(key_pages, table, length), gather(value_pages, table, length)
        output[rows], lse[rows] = attend(query[rows], k, v)
    return output, lse
