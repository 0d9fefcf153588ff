"""Attention as it is written today, as whole arrays."""

import math
from typing import Any, NamedTuple

import cupy
from jaxtyping import Bool, Float

from attnverify.contract.attention import D_WITH_LSE, check_grouped, check_parts
from attnverify.contract.shapes import check

from .arrays import ARRAYS, Array, ieee, narrow, wide
from .attention import (
    Keep,
    Mask,
    hide,
    kept,
    mask_grad,
    sum_seen,
)
from .masks import visible_keys

__all__ = [
    "grouped_attention",
    "grouped_attention_grad",
    "merge_attention",
    "merge_attention_grad",
]


@ieee
def grouped_attention(
    query: Float[Array, "B H N D"],
    key: Float[Array, "B G M D"],
    value: Float[Array, "B G M E"],
    mask: Mask = None,
    soft_cap: float | None = None,
    sink: Float[Array, "H"] | None = None,
    scale: float | None = None,
    keep: Keep = None,
    p: float = 0.0,
    **options: Any,
) -> tuple[Float[Array, "B H N E"], Float[Array, "B H N"]]:
    """
    See :func:`spec.grouped.grouped_attention`.

    The heads of a group stand beside each other as rows of its keys.
    """
    check_grouped(ARRAYS, query, key, value, mask, soft_cap, sink, scale, keep, p)
    pairs = shown(query, key, options)
    return attended(query, key, value, mask, pairs, soft_cap, sink, scale, keep, p)


def attended(
    query: Array,
    key: Array,
    value: Array,
    mask: Mask,
    pairs: Array,
    soft_cap: float | None,
    sink: Array | None,
    scale: float | None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Array, Array]:
    """Output and lse, once it is known which pairs see each other."""
    dtype = query.dtype
    query, key, value, mask, sink = wide(query, key, value, mask, sink)
    at = weigh(query, key, mask, pairs, sink, soft_cap, factor_of(query, scale))
    weights = at.weights if keep is None else kept(at.weights, keep, p)
    output = sum_seen(by_group(weights, key), by_group(at.pairs, key), value)
    output = output.reshape(*query.shape[:3], -1)
    return narrow(output, dtype), at.lse


@ieee
def grouped_attention_grad(
    d_output: Float[Array, "B H N E"],
    d_lse: Float[Array, "B H N"],
    query: Float[Array, "B H N D"],
    key: Float[Array, "B G M D"],
    value: Float[Array, "B G M E"],
    mask: Mask = None,
    soft_cap: float | None = None,
    sink: Float[Array, "H"] | None = None,
    scale: float | None = None,
    keep: Keep = None,
    p: float = 0.0,
    **options: Any,
) -> tuple[Array, ...]:
    """
    See :func:`spec.grouped.grouped_attention_grad`.

    What arrives at the weights and at the lse meets at the scores; products over the rows of a
    group sum over its heads.
    """
    size = check_grouped(ARRAYS, query, key, value, mask, soft_cap, sink, scale, keep, p)
    check(ARRAYS, D_WITH_LSE, d_output, d_lse, **size)
    arriving, pairs = (d_output, d_lse), shown(query, key, options)
    return gradients(arriving, query, key, value, mask, pairs, soft_cap, sink, scale, keep, p)


def gradients(
    at_results: tuple[Array, Array],
    query: Array,
    key: Array,
    value: Array,
    mask: Mask,
    pairs: Array,
    soft_cap: float | None,
    sink: Array | None,
    scale: float | None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Array, ...]:
    """What arrives at output and lse, sent on to where it came from."""
    dtype, given = query.dtype, mask
    d_output, d_lse = at_results
    xp = cupy.get_array_module(query)
    query, key, value, mask, sink, d_output, d_lse = wide(
        query, key, value, mask, sink, d_output, d_lse
    )
    factor = factor_of(query, scale)
    at = weigh(query, key, mask, pairs, sink, soft_cap, factor)
    hidden = by_group(at.pairs, key)
    arriving = by_group(d_output, key)
    d_weights = xp.where(hidden, arriving @ value.mT, 0).reshape(at.weights.shape)
    shares = at.weights
    if keep is not None:
        d_weights, shares = kept(d_weights, keep, p), kept(shares, keep, p)
    through = d_lse - (at.weights * d_weights).sum(axis=-1)
    d_score = xp.where(at.pairs, at.weights * (d_weights + through[..., None]), 0)
    slope = 1 if at.capped is None else 1 - (at.capped / soft_cap) ** 2
    d_product = by_group(xp.where(at.pairs, d_score * slope, 0) * factor, key)
    d_query = sum_seen(d_product, hidden, key).reshape(query.shape)
    d_key = sum_seen(d_product.mT, hidden.mT, by_group(query, key))
    d_value = sum_seen(by_group(shares, key).mT, hidden.mT, arriving)
    found = [narrow(x, dtype) for x in (d_query, d_key, d_value)]
    if sink is None:
        return *found, *mask_grad(d_score, given)
    by_sink = xp.where(at.of_sink == 0, 0, at.of_sink * through).sum(axis=(0, 2))
    return *found, *mask_grad(d_score, given), narrow(by_sink, dtype)


class Weighed(NamedTuple):
    """Weights [B H N M], their pairs, the lse, the sink's weight, and the capped scores."""

    weights: Array
    pairs: Bool[Array, "B H N M"]
    lse: Array
    of_sink: Array
    capped: Array | None


def weigh(
    query: Array,
    key: Array,
    mask: Array | None,
    pairs: Array,
    sink: Array | None,
    soft_cap: float | None,
    factor: float,
) -> Weighed:
    xp = cupy.get_array_module(query)
    score = (by_group(query, key) @ key.mT).reshape(pairs.shape) * factor
    capped = None
    if soft_cap is not None:
        score = capped = xp.tanh(score / soft_cap) * soft_cap
    score = hide(hide(score, mask), pairs)
    rest = xp.full((1, 1), -math.inf, score.dtype) if sink is None else sink[:, None]
    top = xp.maximum(score.max(axis=-1), rest)
    top = xp.where(top == -math.inf, xp.zeros_like(top), top)
    e, own = xp.exp(score - top[..., None]), xp.exp(rest - top)
    total = e.sum(axis=-1) + own
    safe = xp.where(total == 0, xp.ones_like(total), total)
    pairs = score != -math.inf
    weights = xp.where(pairs, e / safe[..., None], 0)
    return Weighed(weights, pairs, top + xp.log(total), own / safe, capped)


def by_group(x: Array, key: Array) -> Array:
    """What belongs to rows [B H N .] as [B G H/G*N .]."""
    return x.reshape(*key.shape[:2], -1, x.shape[-1])


def factor_of(query: Array, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)


def shown(query: Array, key: Array, options: dict[str, Any]) -> Bool[Array, "B H N M"]:
    """Which pairs see each other, but for the mask."""
    (B, H, N), M = query.shape[:3], key.shape[2]
    xp = cupy.get_array_module(query)
    pairs = visible_keys(B, N, M, **options)[:, None]
    return xp.broadcast_to(xp.asarray(pairs), (B, H, N, M))


@ieee
def merge_attention(
    outputs: Float[Array, "C B H N E"], lses: Float[Array, "C B H N"]
) -> tuple[Float[Array, "B H N E"], Float[Array, "B H N"]]:
    """
    See :func:`spec.grouped.merge_attention`.

    Exponentials beside the largest lse, their sum, and a mean of the parts that are there.
    """
    check_parts(ARRAYS, outputs, lses)
    parts, scores = wide(outputs, lses)
    weights, lse = merged(scores)
    return narrow(mean(weights, parts), outputs.dtype), lse


@ieee
def merge_attention_grad(
    d_output: Float[Array, "B H N E"],
    d_lse: Float[Array, "B H N"],
    outputs: Float[Array, "C B H N E"],
    lses: Float[Array, "C B H N"],
) -> tuple[Array, ...]:
    """
    See :func:`spec.grouped.merge_attention_grad`.

    The products of the gradient with each part, less their mean, which is that with the output.
    """
    check(ARRAYS, D_WITH_LSE, d_output, d_lse, **check_parts(ARRAYS, outputs, lses))
    parts, scores, d_mean, d_sum = wide(outputs, lses, d_output, d_lse)
    xp = cupy.get_array_module(parts)
    weights, _ = merged(scores)
    there = scores > -math.inf
    d_weights = (xp.where(there[..., None], parts, 0) * d_mean).sum(axis=-1)
    d_score = weights * (d_weights - (weights * d_weights).sum(axis=0) + d_sum)
    d_parts = xp.where(there[..., None], weights[..., None] * d_mean, 0)
    return narrow(d_parts, outputs.dtype), xp.where(there, d_score, 0)


def merged(lses: Array) -> tuple[Array, Array]:
    """The weights of the parts, and their log-sum-exp."""
    xp = cupy.get_array_module(lses)
    top = lses.max(axis=0)
    top = xp.where(top == -math.inf, xp.zeros_like(top), top)
    e = xp.exp(lses - top)
    total = e.sum(axis=0)
    lse = top + xp.log(total)
    return e / xp.where(total > 0, total, xp.ones_like(total)), lse


def mean(weights: Array, parts: Array) -> Array:
    xp = cupy.get_array_module(parts)
    return xp.where(weights[..., None] > 0, weights[..., None] * parts, xp.zeros_like(parts)).sum(
        axis=0
    )
