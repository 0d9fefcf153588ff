"""
Decoding over pages with several rows a sequence, as when a draft is verified
(as flashinfer-ai/flashinfer #4137 found the XQA kernel's sliding window).
"""

import torch

FEATURES = {"gradient": False, "mask": False, "dropout": False}


def row_block(q, k, v, pos, first, scale, causal, right):
    """Rows of one sequence: q [H n D], k and v [H m .], pos [n]; keys before first are left out."""
    j = torch.arange(k.shape[1])
    seen = (j >= first).expand(len(pos), -1)
    if causal:
        seen = seen & (j <= pos[:, None])
    if right is not None:
        seen = seen & (j <= pos[:, None] + right)
    top = q.new_full((*q.shape[:2], 1), -torch.inf)
    total, acc = torch.zeros_like(top), q.new_zeros(*q.shape[:2], v.shape[-1])
    for at in range(0, k.shape[1], 16):
        s = scale * (q @ k[:, at : at + 16].mT)
        s = s.masked_fill(~seen[:, at : at + 16], -torch.inf)
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        safe = torch.where(new == -torch.inf, 0.0, new)
        p, alpha = (s - safe).exp(), (top - safe).exp()
        total, acc, top = (
            total * alpha + p.sum(-1, keepdim=True),
            acc * alpha + p @ v[:, at : at + 16],
            new,
        )
    lse = torch.where(total == 0, -torch.inf, top + total.log())
    return acc / torch.where(total == 0, 1.0, total), lse[..., 0]


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
    t, h, d = query.shape
    size, g = key_pages.shape[1:3]
    scale = d**-0.5 if scale is None else scale
    left, right = (None, None) if window is None else window
    output = query.new_zeros(t, h, value_pages.shape[-1])
    lse = query.new_full((t, h), -torch.inf)
    for b, m in enumerate(lengths.tolist()):
        lo, hi = query_starts[b : b + 2].tolist()
        if lo == hi or m == 0:
            continue
        pos = torch.arange(hi - lo) + m - (hi - lo)
        first = 0
        if left is not None:
            first = pos[-1] - left  # where the window begins
        begin = 0 if left is None else max(0, int(pos[0]) - left)
        keys = torch.arange(min(begin, m), m)
        if not len(keys):
            continue
        page = page_table[b][keys // size].long()
        k, v = (
            x[page, keys % size].repeat_interleave(h // g, 1).transpose(0, 1)
            for x in (key_pages, value_pages)
        )
        o, one = row_block(
            query[lo:hi].transpose(0, 1), k, v, pos - begin, first - begin, scale, causal, right
        )
        output[lo:hi], lse[lo:hi] = o.transpose(0, 1), one.T
    return output, lse
