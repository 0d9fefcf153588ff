"""Paged attention, two pages a step (as pypto #470 had it)."""

import torch


def two_pages(row, y, pages, pool):
    """The numbers of pages y and y + 1 of a sequence, the last of which may be alone."""
    first = int(row[y])
    if y + 1 == pages:
        return [first]
    return [first, min(first + 1, pool - 1)]


def paged_attention(query, key_pages, value_pages, page_table, lengths, query_starts, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    pool, width, groups, _ = key_pages.shape
    q = query.unflatten(1, (groups, -1))
    out = query.new_zeros(*q.shape[:3], value_pages.shape[-1])
    lse = query.new_full(q.shape[:3], -torch.inf)
    for b, length in enumerate(lengths.tolist()):
        t = slice(int(query_starts[b]), int(query_starts[b + 1]))
        pages = -(-length // width)
        top, total, acc = lse[t].clone(), torch.zeros_like(lse[t]), torch.zeros_like(out[t])
        for y in range(0, pages, 2):
            own = two_pages(page_table[b], y, pages, pool)
            k = key_pages[own].flatten(0, 1)[: length - y * width]
            v = value_pages[own].flatten(0, 1)[: length - y * width]
            s = torch.einsum("tgrd,mgd->tgrm", q[t], k) * scale
            new = torch.maximum(top, s.amax(-1))
            p, fade = torch.exp(s - new[..., None]), torch.exp(top - new)
            total = total * fade + p.sum(-1)
            acc = acc * fade[..., None] + torch.einsum("tgrm,mge->tgre", p, v)
            top = new
        if pages:
            out[t], lse[t] = acc / total[..., None], top + total.log()
    return out.flatten(1, 2), lse.flatten(1, 2)
