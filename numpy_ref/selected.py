"""Attention over chosen blocks, as grouped attention whose rows are shown these alone."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from attnverify.contract.attention import D_WITH_LSE, check_once, check_selected
from attnverify.contract.shapes import check

from .arrays import ARRAYS
from .grouped import attended, gradients, seen_pairs
from .rounding import keeps_wide

__all__ = ["selected_attention", "selected_attention_grad"]


@keeps_wide(1)
def selected_attention(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B G M D"],
    value: Float[ndarray, "B G M E"],
    selection: Int[ndarray, "B G N J"],
    block: int,
    soft_cap: float | None = None,
    sink: Float[ndarray, "H"] | None = None,
    scale: float | None = None,
    **options: Any,
) -> tuple[Float[ndarray, "B H N E"], Float[ndarray, "B H N"]]:
    """
    See :func:`spec.selected.selected_attention`.

    A table of rows and blocks says what is chosen, and each key looks its block up.
    """
    check_selected(ARRAYS, query, key, value, selection, block, soft_cap, sink, scale)
    seen = seen_pairs(query, key, chosen(query, key, selection, block), options)
    return attended(query, key, value, None, sink, seen, soft_cap, scale)


@keeps_wide()
def selected_attention_grad(
    d_output: Float[ndarray, "B H N E"],
    d_lse: Float[ndarray, "B H N"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B G M D"],
    value: Float[ndarray, "B G M E"],
    selection: Int[ndarray, "B G N J"],
    block: int,
    soft_cap: float | None = None,
    sink: Float[ndarray, "H"] | None = None,
    scale: float | None = None,
    **options: Any,
) -> tuple[ndarray, ...]:
    """
    See :func:`spec.selected.selected_attention_grad`.

    The gradients of grouped attention, through the chosen pairs.
    """
    at = check_selected(ARRAYS, query, key, value, selection, block, soft_cap, sink, scale)
    check(ARRAYS, D_WITH_LSE, d_output, d_lse, **at)
    seen = seen_pairs(query, key, chosen(query, key, selection, block), options)
    return gradients((d_output, d_lse), query, key, value, None, sink, seen, soft_cap, scale)


def chosen(
    query: ndarray, key: ndarray, selection: ndarray, block: int
) -> Bool[ndarray, "B H N M"]:
    (H, M), G = (query.shape[1], key.shape[2]), selection.shape[1]
    rows = selection.reshape(-1, selection.shape[-1]).astype(np.int64)
    blocks = -(-M // block)
    at = np.arange(len(rows))[:, None] * (blocks + 1) + rows + 1  # -1 has a place in front
    times = np.bincount(at.ravel(), minlength=len(rows) * (blocks + 1))
    times = times.reshape(*selection.shape[:3], blocks + 1)[..., 1:]
    check_once(times)
    shown = (times > 0)[..., np.arange(M) // block]
    return np.repeat(shown, H // G, axis=1)
