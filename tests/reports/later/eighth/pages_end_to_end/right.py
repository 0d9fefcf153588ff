"""Decode attention over a paged cache, by addresses (after aiter #3498)."""

import torch

FEATURES = {"gradient": False}


def load_block(cache, physical_block, head, rows):
    """The first rows of one head of a block, by the strides of the cache."""
    stride_block, stride_slot, stride_head, stride_dim = cache.stride()
    base = cache.storage_offset() + head * stride_head
    base += physical_block * stride_block
    return cache.as_strided((rows, cache.shape[3]), (stride_slot, stride_dim), base)


def paged_attention(
    query, key_pages, value_pages, page_table, lengths, query_starts, scale=None, causal=False
):
    (tokens, heads, d), (_, block_size, kv_heads, e) = query.shape, value_pages.shape
    scale = d**-0.5 if scale is None else scale
    output = query.new_zeros(tokens, heads, e)
    lse = query.new_full((tokens, heads), -torch.inf)
    starts = query_starts.tolist()
    for b, length in enumerate(lengths.tolist()):
        rows = slice(starts[b], starts[b + 1])
        n = rows.stop - rows.start
        if n == 0 or length == 0:
            continue
        seen = torch.ones(n, length, dtype=torch.bool)
        if causal:
            seen = seen.tril(length - n)
        some = seen.any(0)
        for h in range(heads):
            m_i = query.new_full((n, 1), -torch.inf)
            l_i, acc = torch.zeros_like(m_i), query.new_zeros(n, e)
            for start in range(0, length, block_size):
                tile = slice(start, min(start + block_size, length))
                if not some[tile].any():
                    continue
                at = int(page_table[b, start // block_size]), h * kv_heads // heads
                k, v = (
                    torch.where(some[tile, None], load_block(x, *at, tile.stop - start), 0.0)
                    for x in (key_pages, value_pages)
                )
                s = (query[rows, h] @ k.mT * scale).masked_fill(~seen[:, tile], -torch.inf)
                m_new = torch.maximum(m_i, s.amax(-1, keepdim=True))
                safe = torch.where(m_new == -torch.inf, 0.0, m_new)
                p, alpha = (s - safe).exp(), (m_i - safe).exp()
                l_i, acc, m_i = l_i * alpha + p.sum(-1, keepdim=True), acc * alpha + p @ v, m_new
            output[rows, h] = acc / torch.where(l_i == 0, 1.0, l_i)
            lse[rows, h] = torch.where(l_i == 0, -torch.inf, m_i + l_i.log())[:, 0]
    return output, lse
