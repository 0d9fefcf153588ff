"""Sequences in pages, as sequences laid end to end once their slots are gathered."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from attnverify.contract.paged import check_paged, check_pages

from .arrays import ARRAYS
from .grouped import attended
from .packed import Starts, heads_first, seen_pairs, tokens_first
from .rounding import keeps_wide

__all__ = ["paged_attention"]


@keeps_wide(1)
def paged_attention(
    query: Float[ndarray, "T H D"],
    key_pages: Float[ndarray, "Z W G D"],
    value_pages: Float[ndarray, "Z W G E"],
    page_table: Int[ndarray, "B Y"],
    lengths: Int[ndarray, "B"],
    query_starts: Starts,
    soft_cap: float | None = None,
    sink: Float[ndarray, "H"] | None = None,
    scale: float | None = None,
    **options: Any,
) -> tuple[Float[ndarray, "T H E"], Float[ndarray, "T H"]]:
    """
    See :func:`spec.paged.paged_attention`.

    Every slot that a table names is gathered, seen or not, and one grouped attention of all rows
    over all of them follows.
    """
    at = check_paged(ARRAYS, query, key_pages, value_pages, page_table, lengths, query_starts,
                     soft_cap, sink, scale, **options)  # fmt: skip
    slots = (page_table[:, :, None] * at["W"] + np.arange(at["W"])).ravel()
    starts = np.arange(at["B"] + 1) * (at["Y"] * at["W"])
    seen = seen_pairs(query, slots, query_starts, starts, options | {"lengths": lengths})
    used = seen[0, 0].any(0)
    check_pages(slots[used] // at["W"], at["Z"])
    slots = np.where(used, slots, 0)
    pools = (pool.reshape(-1, *pool.shape[2:])[slots] for pool in (key_pages, value_pages))
    q, k, v = heads_first(query, *pools)
    return tokens_first(*attended(q, k, v, None, sink, seen, soft_cap, scale))
