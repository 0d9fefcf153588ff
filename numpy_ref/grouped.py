"""Attention as it is written today, a block of rows at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from attnverify.contract.attention import D_WITH_LSE, check_grouped, check_parts
from attnverify.contract.shapes import check

from .arrays import ARRAYS, is_float
from .attention import Keep, Mask, mask_grad
from .hidden_keys import dropped, sum_seen
from .masks import visible_keys
from .rounding import keeps_wide

__all__ = [
    "grouped_attention",
    "grouped_attention_grad",
    "merge_attention",
    "merge_attention_grad",
]

ROWS = 2**18
"""Pairs of a row and a key that are held at a time."""


@keeps_wide(1)
def grouped_attention(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B G M D"],
    value: Float[ndarray, "B G M E"],
    mask: Mask = None,
    soft_cap: float | None = None,
    sink: Float[ndarray, "H"] | None = None,
    scale: float | None = None,
    keep: Keep = None,
    p: float = 0.0,
    **options: Any,
) -> tuple[Float[ndarray, "B H N E"], Float[ndarray, "B H N"]]:
    """
    See :func:`spec.grouped.grouped_attention`.

    The query heads of a group stand beside each other as rows of its keys; block after block.
    """
    check_grouped(ARRAYS, query, key, value, mask, soft_cap, sink, scale, keep, p)
    seen = seen_pairs(query, key, mask, options)
    return attended(query, key, value, mask, sink, seen, soft_cap, scale, keep, p)


def attended(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    mask: Any,
    sink: ndarray | None,
    seen: ndarray,
    soft_cap: float | None,
    scale: float | None,
    keep: Any = None,
    p: float = 0.0,
) -> tuple[ndarray, ndarray]:
    """Output and lse, once it is known which pairs see each other."""
    output = np.zeros((*query.shape[:3], value.shape[-1]), value.dtype)
    lse = np.zeros(query.shape[:3], query.dtype)
    for block in blocks(query, key, mask, sink, seen, soft_cap, scale):
        heads, keys = block.of_rows, block.of_keys
        kept = None if keep is None else np.broadcast_to(keep, seen.shape)[heads]
        shares = dropped(block.weights, kept, p)
        output[heads] = sum_seen(shares, ~block.seen, value[keys])
        lse[heads] = block.lse[..., 0]
    return output, lse


@keeps_wide()
def grouped_attention_grad(
    d_output: Float[ndarray, "B H N E"],
    d_lse: Float[ndarray, "B H N"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B G M D"],
    value: Float[ndarray, "B G M E"],
    mask: Mask = None,
    soft_cap: float | None = None,
    sink: Float[ndarray, "H"] | None = None,
    scale: float | None = None,
    keep: Keep = None,
    p: float = 0.0,
    **options: Any,
) -> tuple[ndarray, ...]:
    """
    See :func:`spec.grouped.grouped_attention_grad`.

    Weights recomputed; the delta of a row is taken from its output's gradient, and what arrives at
    its lse from the delta.
    """
    at = check_grouped(ARRAYS, query, key, value, mask, soft_cap, sink, scale, keep, p)
    check(ARRAYS, D_WITH_LSE, d_output, d_lse, **at)
    arriving, seen = (d_output, d_lse), seen_pairs(query, key, mask, options)
    return gradients(arriving, query, key, value, mask, sink, seen, soft_cap, scale, keep, p)


def gradients(
    arriving: tuple[ndarray, ndarray],
    query: ndarray,
    key: ndarray,
    value: ndarray,
    mask: Any,
    sink: ndarray | None,
    seen: ndarray,
    soft_cap: float | None,
    scale: float | None,
    keep: Any = None,
    p: float = 0.0,
) -> tuple[ndarray, ...]:
    """What arrives at output and lse, sent on to where it came from."""
    d_output, d_lse = arriving
    factor = scale_of(query, scale)
    d_query, d_key, d_value = (np.zeros(x.shape, query.dtype) for x in (query, key, value))
    by_score = np.zeros(seen.shape if is_float(mask) else (1, 1, 1, 1), query.dtype)
    d_sink = np.zeros(query.shape[1], query.dtype)
    for block in blocks(query, key, mask, sink, seen, soft_cap, scale):
        heads, keys, hidden = block.of_rows, block.of_keys, ~block.seen
        d_o, k, v = d_output[heads], key[keys], value[keys]
        kept = None if keep is None else np.broadcast_to(keep, seen.shape)[heads]
        d_value[keys] += sum_seen(dropped(block.weights, kept, p).mT, hidden.mT, d_o).sum(0)
        d_weights = np.where(hidden, 0, dropped(d_o @ v.mT, kept, p))
        through = d_lse[heads][..., None] - (block.weights * d_weights).sum(-1, keepdims=True)
        d_score = np.where(hidden, 0, block.weights * (d_weights + through))
        d_sink[heads[1]] += (block.of_sink * np.where(block.there, through, 0)).sum((-1, -2))
        if is_float(mask):
            by_score[heads] = d_score
        d_product = d_score * block.slope * factor
        d_query[heads] = sum_seen(d_product, hidden, k)
        d_key[keys] += sum_seen(d_product.mT, hidden.mT, query[heads]).sum(0)
    by_sink = () if sink is None else (d_sink,)
    return d_query, d_key, d_value, *mask_grad(by_score, mask), *by_sink


@dataclass(frozen=True)
class Block:
    """
    Some rows of the heads of one group: which of the arrays they are, which keys they see, their
    weights [r n M], lse [r n 1], the sink's weight, and the slope of the cap.
    """

    of_rows: tuple[int, slice, slice]
    of_keys: tuple[int, int]
    seen: ndarray
    weights: ndarray
    lse: ndarray
    of_sink: ndarray
    slope: ndarray | float

    @property
    def there(self) -> ndarray:
        return self.lse > -np.inf


def blocks(
    query: ndarray,
    key: ndarray,
    mask: Any,
    sink: ndarray | None,
    seen: ndarray,
    soft_cap: float | None,
    scale: float | None,
) -> Iterator[Block]:
    """Yield so many rows of a group at a time that their pairs with all keys are few."""
    B, H, N, _ = query.shape
    G, M = key.shape[1:3]
    r = H // G
    step = max(ROWS // (r * M), 1)
    added = np.broadcast_to(mask, seen.shape) if is_float(mask) else None
    for b, g, first in np.ndindex(B, G, -(-N // step)):
        heads = slice(g * r, (g + 1) * r)
        rows = (b, heads, slice(first * step, min((first + 1) * step, N)))
        score = (query[rows] @ key[b, g].T) * scale_of(query, scale)
        slope: ndarray | float = 1.0
        if soft_cap is not None:
            bent = np.tanh(score / soft_cap)
            score, slope = soft_cap * bent, np.where(seen[rows], 1 - bent * bent, 0)
        if added is not None:
            score = score + added[rows]
        score = np.where(seen[rows], score, -np.inf)
        shown = score != -np.inf
        logit = np.full((r, 1, 1), -np.inf) if sink is None else sink[heads, None, None]
        logit = logit.astype(score.dtype)
        top = np.maximum(score.max(-1, keepdims=True), logit)
        top = np.where(top == -np.inf, 0, top)
        e, own = np.exp(score - top), np.exp(logit - top)
        total = e.sum(-1, keepdims=True) + own
        safe = np.where(total == 0, 1, total)
        weights = np.where(shown, e / safe, 0)
        yield Block(rows, (b, g), shown, weights, top + np.log(total), own / safe, slope)


def scale_of(query: ndarray, scale: float | None) -> float:
    return 1 / sqrt(query.shape[-1]) if scale is None else float(scale)


def seen_pairs(query: ndarray, key: ndarray, mask: Mask, options: Any) -> ndarray:
    """Which pairs see each other [B H N M]."""
    B, H, N, M = (*query.shape[:3], key.shape[2])
    seen = np.broadcast_to(visible_keys(B, N, M, **options)[:, None], (B, H, N, M))
    if mask is None:
        return seen
    return seen & (mask if mask.dtype == bool else mask > -np.inf)


@keeps_wide(1)
def merge_attention(
    outputs: Float[ndarray, "C B H N E"], lses: Float[ndarray, "C B H N"]
) -> tuple[Float[ndarray, "B H N E"], Float[ndarray, "B H N"]]:
    """See :func:`spec.grouped.merge_attention`."""
    check_parts(ARRAYS, outputs, lses)
    weights, lse = merged_weights(lses)
    return weighted(weights, outputs), lse


@keeps_wide(1)
def merge_attention_grad(
    d_output: Float[ndarray, "B H N E"],
    d_lse: Float[ndarray, "B H N"],
    outputs: Float[ndarray, "C B H N E"],
    lses: Float[ndarray, "C B H N"],
) -> tuple[ndarray, ...]:
    """See :func:`spec.grouped.merge_attention_grad`."""
    check(ARRAYS, D_WITH_LSE, d_output, d_lse, **check_parts(ARRAYS, outputs, lses))
    weights, _ = merged_weights(lses)
    there = weights[..., None] > 0
    apart = np.where(there, outputs, 0) - weighted(weights, outputs)
    d_score = d_lse + np.einsum("bhne,cbhne->cbhn", d_output, apart)
    return (
        np.where(there, weights[..., None] * d_output, 0),
        np.where(there[..., 0], weights * d_score, 0),
    )


def merged_weights(lses: ndarray) -> tuple[ndarray, ndarray]:
    """The share of each part, and the logarithm of what they sum to."""
    top = lses.max(axis=0)
    top = np.where(top == -np.inf, 0, top)
    e = np.exp(lses - top)
    total = e.sum(axis=0)
    return e / np.where(total > 0, total, 1), np.where(total > 0, top + np.log(total), -np.inf)


def weighted(weights: ndarray, outputs: ndarray) -> ndarray:
    shown = np.where(weights[..., None] > 0, outputs, 0)
    mean: ndarray = np.einsum("cbhn,cbhne->bhne", weights, shown)
    return mean
