"""
Attention by matrix products over whole arrays.

A hidden score is minus infinity and nothing else says that it is hidden. Whatever stands in a key
or value that a row does not see is kept from its sums, pair by pair: what is no number is replaced
by 0 before it meets a product. A visible pair has carried it to the score already; only a value has
to be put back, which costs something where one is not finite (:func:`sum_seen`).
"""

import math

import cupy
from jaxtyping import Bool, Float

from attnverify.contract.attention import (
    D_ADDITIVE,
    D_HEADS,
    D_SCORE,
    D_WEIGHTS,
    check_additive,
    check_attention,
    check_dropout,
    check_softmax,
)
from attnverify.contract.shapes import check

from .arrays import ARRAYS, Array, ieee, narrow, wide
from .scores import hidden_layer, hidden_layer_grad, scaled_products

__all__ = [
    "additive_attention",
    "additive_attention_grad",
    "dropout",
    "dropout_grad",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_grad",
    "softmax",
    "softmax_grad",
]

Mask = Bool[Array, "..."] | Float[Array, "..."] | None
Keep = Bool[Array, "..."] | None


@ieee
def softmax(score: Float[Array, "... N M"], mask: Mask = None) -> Float[Array, "... N M"]:
    """
    See :func:`spec.attention.softmax`.

    The maximum, the exponential, its sum and the division are passes over the whole score.
    """
    check_softmax(ARRAYS, score, mask)
    s = hide(*wide(score, mask))
    return narrow(normalised(s, seen(s)), score.dtype)


@ieee
def softmax_grad(
    d_output: Float[Array, "... N M"], score: Float[Array, "... N M"], mask: Mask = None
) -> tuple[Array, ...]:
    """
    See :func:`spec.attention.softmax_grad`.

    The weights computed anew, then one product, one sum and one product over the whole score.
    """
    check(ARRAYS, D_SCORE, d_output, **check_softmax(ARRAYS, score, mask))
    d_weights, s, wide_mask = wide(d_output, score, mask)
    s = hide(s, wide_mask)
    pairs = seen(s)
    weights = normalised(s, pairs)
    d_weights = cupy.get_array_module(s).where(pairs, d_weights, 0)
    d_score = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
    return narrow(d_score, score.dtype), *mask_grad(d_score, mask)


def hide(score: Array, mask: Mask) -> Array:
    """The score, minus infinity where the mask hides; a hidden score may be NaN."""
    if mask is None:
        return score
    xp = cupy.get_array_module(score)
    return (
        xp.where(mask, score, -math.inf)
        if mask.dtype == bool
        else xp.where(mask == -math.inf, mask, score + mask)
    )


def seen(score: Array) -> Bool[Array, "... N M"]:
    return score != -math.inf


def normalised(score: Array, pairs: Bool[Array, "... N M"]) -> Array:
    """
    The weights of a score. What a row without keys makes of 0 / 0 is dropped, as is what a visible
    NaN leaves in hidden keys.
    """
    xp = cupy.get_array_module(score)
    weights = score - score.max(axis=-1, keepdims=True)
    xp.exp(weights, out=weights)
    weights /= weights.sum(axis=-1, keepdims=True)
    return xp.where(pairs, weights, 0)


@ieee
def dropout(weights: Float[Array, "..."], keep: Keep, p: float) -> Float[Array, "..."]:
    """
    See :func:`spec.attention.dropout`.

    One pass.
    """
    check_dropout(ARRAYS, weights, keep, p)
    (scaled,) = wide(weights)
    return narrow(kept(scaled, keep, p), weights.dtype)


@ieee
def dropout_grad(
    d_output: Float[Array, "..."], weights: Float[Array, "..."], keep: Keep, p: float
) -> tuple[Float[Array, "..."]]:
    """
    See :func:`spec.attention.dropout_grad`.

    One pass over the gradient.
    """
    check(ARRAYS, D_WEIGHTS, d_output, **check_dropout(ARRAYS, weights, keep, p))
    (scaled,) = wide(d_output)
    return (narrow(kept(scaled, keep, p), weights.dtype),)


def kept(weights: Array, keep: Keep, p: float) -> Array:
    scaled = weights / (1 - float(p))  # a NumPy scalar would widen the result
    return scaled if keep is None else cupy.get_array_module(weights).where(keep, scaled, 0)


def attend(
    score: Array, value: Array, keep: Keep = None, p: float = 0.0
) -> Float[Array, "... N E"]:
    """The mean of the values under a score whose hidden entries are minus infinity."""
    pairs = seen(score)
    weights = normalised(score, pairs)
    if keep is not None:
        weights = kept(weights, keep, p)
    return sum_seen(weights, pairs, value)


def finite(x: Array) -> Array:
    """x with 0 for NaN and infinity."""
    xp = cupy.get_array_module(x)
    return xp.where(xp.isfinite(x), x, 0)


def sum_seen(weights: Array, pairs: Bool[Array, "... N M"], value: Array) -> Array:
    """
    weights @ value over the pairs that see each other.

    One product of what is finite, and three that count which rows meet infinity, minus infinity,
    or either under a weight of 0, where NaN is both. On the host these three are left out where all
    is finite; on a device to look would be to wait for it.
    """
    xp = cupy.get_array_module(value)
    is_finite = xp.isfinite(value)
    if xp is not cupy and is_finite.all():
        return weights @ value
    total = weights @ xp.where(is_finite, value, 0)
    kind = total.dtype
    none = (pairs & (weights == 0)).astype(kind) @ (~is_finite).astype(kind)
    up, down = (
        none + pairs.astype(kind) @ x.astype(kind)
        for x in (~(value < math.inf), ~(value > -math.inf))
    )
    lost = xp.where(up > 0, math.inf, 0) - xp.where(down > 0, math.inf, 0)
    return total + lost.astype(kind)


def present(x: Array, rows: Bool[Array, "..."]) -> Array:
    """The rows of x that take part; 0 in place of the others, which may be NaN."""
    return cupy.get_array_module(x).where(rows[..., None], x, 0)


def attend_grad(
    d_output: Array,
    weights: Array,
    pairs: Bool[Array, "... N M"],
    value: Array,
    keep: Keep = None,
    p: float = 0.0,
    at_weights: Array | None = None,
) -> tuple[Float[Array, "... N M"], Float[Array, "... M E"]]:
    """
    The gradients of :func:`attend` by score and value, from the weights. Absent rows of d_output
    are 0 already; others may be no numbers, where a layer norm follows, and reach no value that
    they do not see. ``at_weights`` arrives at the weights behind their dropout.
    """
    dropped, d_weights = weights, d_output @ value.mT
    if at_weights is not None:
        d_weights += at_weights
    d_weights = cupy.get_array_module(weights).where(pairs, d_weights, 0)
    if keep is not None:
        dropped, d_weights = kept(weights, keep, p), kept(d_weights, keep, p)
    d_weights -= (weights * d_weights).sum(axis=-1, keepdims=True)
    d_score = cupy.get_array_module(weights).where(pairs, weights * d_weights, 0)
    return d_score, sum_seen(dropped.mT, pairs.mT, d_output)


def mask_grad(d_score: Array, mask: Mask) -> tuple[Array, ...]:
    """
    The gradient by a float mask: that of the score, summed over the axes along which the mask was
    broadcast.
    """
    if mask is None or mask.dtype == bool:
        return ()
    new = d_score.ndim - mask.ndim
    axes = (*range(new), *(new + axis for axis, size in enumerate(mask.shape) if size == 1))
    d_mask = d_score.sum(axis=axes) if axes else d_score
    return (narrow(d_mask.reshape(mask.shape), mask.dtype),)


@ieee
def additive_attention(
    query: Float[Array, "B N Q"],
    key: Float[Array, "B M K"],
    value: Float[Array, "B M E"],
    w_query: Float[Array, "A Q"],
    w_key: Float[Array, "A K"],
    w_score: Float[Array, "A"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Array, "B N E"]:
    """
    See :func:`spec.attention.additive_attention`.

    The hidden layer [B N M A] is held in memory as a whole.
    """
    inputs = query, key, value, w_query, w_key, w_score
    check_additive(ARRAYS, inputs, mask, keep, p)
    dtype = query.dtype
    query, key, value, w_query, w_key, w_score, mask = wide(*inputs, mask)
    score = hide(hidden_layer(query, key, w_query, w_key) @ w_score, mask)
    return narrow(attend(score, value, keep, p), dtype)


@ieee
def additive_attention_grad(
    d_output: Float[Array, "B N E"],
    query: Float[Array, "B N Q"],
    key: Float[Array, "B M K"],
    value: Float[Array, "B M E"],
    w_query: Float[Array, "A Q"],
    w_key: Float[Array, "A K"],
    w_score: Float[Array, "A"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Array, ...]:
    """
    See :func:`spec.attention.additive_attention_grad`.

    The hidden layer [B N M A] is held in memory twice; w_a leaves the sums over the pairs, which
    are matrix products.
    """
    inputs = query, key, value, w_query, w_key, w_score
    check(ARRAYS, D_ADDITIVE, d_output, **check_additive(ARRAYS, inputs, mask, keep, p))
    dtypes = [x.dtype for x in inputs]
    d_output, query, key, value, w_query, w_key, w_score, wide_mask = wide(d_output, *inputs, mask)
    t = hidden_layer(query, key, w_query, w_key)
    score = hide(t @ w_score, wide_mask)
    pairs = seen(score)
    t, sees, is_seen = present(t, pairs), pairs.any(axis=-1), pairs.any(axis=-2)
    query, key = present(query, sees), present(key, is_seen)
    d_score, d_value = attend_grad(
        present(d_output, sees), normalised(score, pairs), pairs, value, keep, p
    )
    d_query, d_key, *d_weights = hidden_layer_grad(d_score, t, query, key, w_query, w_key, w_score)
    grads = d_query, d_key, d_value, *d_weights
    return *(narrow(x, to) for x, to in zip(grads, dtypes, strict=True)), *mask_grad(d_score, mask)


@ieee
def scaled_dot_product_attention(
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Array, "B H N E"]:
    """
    See :func:`spec.attention.scaled_dot_product_attention`.

    Two batched matrix products around the softmax; the score [B H N M] is held in memory.
    """
    check_attention(ARRAYS, query, key, value, mask, keep, p)
    dtype = query.dtype
    query, key, value, mask = wide(query, key, value, mask)
    return narrow(attend(hide(scaled_products(query, key), mask), value, keep, p), dtype)


@ieee
def scaled_dot_product_attention_grad(
    d_output: Float[Array, "B H N E"],
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Array, ...]:
    """
    See :func:`spec.attention.scaled_dot_product_attention_grad`.

    Five batched matrix products, the score computed anew.
    """
    check(ARRAYS, D_HEADS, d_output, **check_attention(ARRAYS, query, key, value, mask, keep, p))
    dtypes = query.dtype, key.dtype, value.dtype
    d_output, query, key, value, wide_mask = wide(d_output, query, key, value, mask)
    score = hide(scaled_products(query, key), wide_mask)
    d_score, *grads = heads_grad(d_output, query, key, value, score, keep, p)
    return *(narrow(x, to) for x, to in zip(grads, dtypes, strict=True)), *mask_grad(d_score, mask)


def heads_grad(
    d_output: Array,
    query: Array,
    key: Array,
    value: Array,
    score: Array,
    keep: Keep = None,
    p: float = 0.0,
    at_weights: Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    """The gradients by score, query, key and value where the score holds q.k / sqrt(D)."""
    pairs = seen(score)
    weights, d_output = normalised(score, pairs), present(d_output, pairs.any(axis=-1))
    d_score, d_value = attend_grad(d_output, weights, pairs, value, keep, p, at_weights)
    g = d_score / math.sqrt(query.shape[-1])
    return d_score, g @ finite(key), g.mT @ finite(query), d_value
