"""Sequences in pages of a pool, as whole arrays."""

from typing import Any

import cupy
from jaxtyping import Float, Int

from attnverify.contract.paged import check_paged, check_pages

from .arrays import ARRAYS, Array, ieee
from .grouped import attended
from .packed import Starts, heads_first, tokens_first, visible_tokens

__all__ = ["paged_attention"]


@ieee
def paged_attention(
    query: Float[Array, "T H D"],
    key_pages: Float[Array, "Z W G D"],
    value_pages: Float[Array, "Z W G E"],
    page_table: Int[Array, "B Y"],
    lengths: Int[Array, "B"],
    query_starts: Starts,
    soft_cap: float | None = None,
    sink: Float[Array, "H"] | None = None,
    scale: float | None = None,
    **options: Any,
) -> tuple[Float[Array, "T H E"], Float[Array, "T H"]]:
    """
    See :func:`spec.paged.paged_attention`.

    The pages of every row of the table, end to end, are hidden from the rows of other sequences.
    """
    at = check_paged(ARRAYS, query, key_pages, value_pages, page_table, lengths, query_starts,
                     soft_cap, sink, scale, **options)  # fmt: skip
    xp = cupy.get_array_module(query)
    named = xp.clip(page_table, 0, at["Z"] - 1).ravel()
    k, v = (pages[named].reshape(-1, *pages.shape[2:]) for pages in (key_pages, value_pages))
    starts = xp.arange(at["B"] + 1) * (at["Y"] * at["W"])
    pairs = visible_tokens(query, k, query_starts, starts, lengths=lengths, **options)
    used = pairs[0, 0].any(0).reshape(-1, at["W"]).any(1)
    check_pages(page_table.ravel()[used], at["Z"])
    q, k, v = heads_first(query, k, v)
    return tokens_first(*attended(q, k, v, None, pairs, soft_cap, sink, scale))
