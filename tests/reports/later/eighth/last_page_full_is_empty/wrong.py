"""Paged attention over a block table (as MinivLLM #83 had the tokens of the last block)."""

import math

import torch

FEATURES = {"gradient": False}


def last_block_num_tokens(num_tokens, block_size):
    full_blocks = math.floor(num_tokens / block_size)
    return num_tokens - full_blocks * block_size


def paged_attention(
    query, key_pages, value_pages, page_table, lengths, query_starts, scale=None, causal=False
):
    (tokens, heads, d), (pages, block_size, kv_heads, e) = query.shape, value_pages.shape
    scale = d**-0.5 if scale is None else scale
    output = query.new_zeros(tokens, heads, e)
    lse = query.new_full((tokens, heads), -torch.inf)
    starts = query_starts.tolist()
    for b, length in enumerate(lengths.tolist()):
        rows = slice(starts[b], starts[b + 1])
        n, num_blocks = rows.stop - rows.start, math.ceil(length / block_size)
        if n == 0 or num_blocks == 0:
            continue
        j = torch.arange((num_blocks - 1) * block_size + last_block_num_tokens(length, block_size))
        seen = torch.ones(n, len(j), dtype=torch.bool)
        if causal:
            seen = j <= torch.arange(length - n, length)[:, None]
        block = page_table[b, j // block_size].long().clamp(0, pages - 1)
        read = seen.any(0)[:, None, None]
        k, v = (
            torch.where(read, cache[block, j % block_size], 0.0).repeat_interleave(
                heads // kv_heads, 1
            )
            for cache in (key_pages, value_pages)
        )
        s = torch.einsum("nhd,jhd->nhj", query[rows], k) * scale
        s = s.masked_fill(~seen[:, None], -torch.inf)
        lse[rows] = s.logsumexp(-1)
        w = (s - torch.where(lse[rows] == -torch.inf, 0.0, lse[rows])[..., None]).exp()
        output[rows] = torch.einsum("nhj,jhe->nhe", w, v)
    return output, lse
