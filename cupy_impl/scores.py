"""Scores by matrix products, one for each sum of the formula."""

import math

import cupy
from jaxtyping import Float

from attnverify.contract.attention import ADDITIVE_SCORE, D_SCORE, SCALED_SCORE
from attnverify.contract.shapes import check

from .arrays import ARRAYS, Array, ieee, narrow, wide

__all__ = [
    "additive_score",
    "additive_score_grad",
    "scaled_dot_product_score",
    "scaled_dot_product_score_grad",
]


@ieee
def additive_score(
    query: Float[Array, "... N Q"],
    key: Float[Array, "... M K"],
    w_query: Float[Array, "A Q"],
    w_key: Float[Array, "A K"],
    w_score: Float[Array, "A"],
) -> Float[Array, "... N M"]:
    """
    See :func:`spec.scores.additive_score`.

    The hidden layer [... N M A] is held in memory as a whole; there is no fused kernel for it here.
    """
    check(ARRAYS, ADDITIVE_SCORE, query, key, w_query, w_key, w_score)
    dtype, (query, key, w_query, w_key, w_score) = (
        query.dtype,
        wide(query, key, w_query, w_key, w_score),
    )
    return narrow(hidden_layer(query, key, w_query, w_key) @ w_score, dtype)


def hidden_layer(
    query: Array, key: Array, w_query: Array, w_key: Array
) -> Float[Array, "... N M A"]:
    t = (query @ w_query.T)[..., :, None, :] + (key @ w_key.T)[..., None, :, :]
    return cupy.get_array_module(t).tanh(t, out=t)


@ieee
def scaled_dot_product_score(
    query: Float[Array, "... N D"], key: Float[Array, "... M D"]
) -> Float[Array, "... N M"]:
    """
    See :func:`spec.scores.scaled_dot_product_score`.

    One batched matrix product, scaled in place.
    """
    check(ARRAYS, SCALED_SCORE, query, key)
    dtype, (query, key) = query.dtype, wide(query, key)
    return narrow(scaled_products(query, key), dtype)


def scaled_products(query: Array, key: Array) -> Float[Array, "... N M"]:
    s = query @ key.mT
    s /= math.sqrt(query.shape[-1])
    return s


@ieee
def additive_score_grad(
    d_output: Float[Array, "... N M"],
    query: Float[Array, "... N Q"],
    key: Float[Array, "... M K"],
    w_query: Float[Array, "A Q"],
    w_key: Float[Array, "A K"],
    w_score: Float[Array, "A"],
) -> tuple[Array, ...]:
    """
    See :func:`spec.scores.additive_score_grad`.

    The hidden layer [... N M A] is held in memory twice, the leading axes as one.
    """
    inputs = query, key, w_query, w_key, w_score
    check(ARRAYS, ADDITIVE_SCORE + D_SCORE, *inputs, d_output)
    d, q, k = (x.reshape(-1, *x.shape[-2:]) for x in (d_output, query, key))
    d, q, k, w_q, w_k, w_s = wide(d, q, k, w_query, w_key, w_score)
    grads = hidden_layer_grad(d, hidden_layer(q, k, w_q, w_k), q, k, w_q, w_k, w_s)
    return tuple(
        narrow(d_x, x.dtype).reshape(x.shape) for d_x, x in zip(grads, inputs, strict=True)
    )


def hidden_layer_grad(
    d_score: Float[Array, "B N M"],
    t: Float[Array, "B N M A"],
    query: Array,
    key: Array,
    w_query: Array,
    w_key: Array,
    w_score: Array,
) -> tuple[Array, ...]:
    """The gradients by query, key and the three weights; w_a leaves the sums over the pairs."""
    slope = 1 - t * t
    d_q = (d_score[:, :, None, :] @ slope)[:, :, 0] * w_score
    d_k = (d_score.mT[:, :, None, :] @ slope.swapaxes(1, 2))[:, :, 0] * w_score
    d_w_score = d_score.reshape(-1) @ t.reshape(-1, t.shape[-1])
    d_weights = over_rows(d_q, query), over_rows(d_k, key), d_w_score
    return d_q @ w_query, d_k @ w_key, *d_weights


def over_rows(d_projected: Float[Array, "B N A"], x: Float[Array, "B N F"]) -> Float[Array, "A F"]:
    """The gradient by the weights of a projection: a sum over batch and positions."""
    return d_projected.reshape(-1, d_projected.shape[-1]).T @ x.reshape(-1, x.shape[-1])


@ieee
def scaled_dot_product_score_grad(
    d_output: Float[Array, "... N M"],
    query: Float[Array, "... N D"],
    key: Float[Array, "... M D"],
) -> tuple[Array, Array]:
    """
    See :func:`spec.scores.scaled_dot_product_score_grad`.

    The gradient scaled once, then two batched matrix products.
    """
    check(ARRAYS, SCALED_SCORE + D_SCORE, query, key, d_output)
    dtypes = query.dtype, key.dtype
    d_output, query, key = wide(d_output, query, key)
    g = d_output / math.sqrt(query.shape[-1])
    return narrow(g @ key, dtypes[0]), narrow(g.mT @ query, dtypes[1])
