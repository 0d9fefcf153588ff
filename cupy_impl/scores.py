"""Scores by matrix products, one for each sum of the formula."""

import math

import cupy
from jaxtyping import Float

from .arrays import Array, ieee, narrow, wide
from .shapes import check

__all__ = ["additive_score", "scaled_dot_product_score"]

WEIGHTS = {"w_query": "A Q", "w_key": "A K", "w_score": "A"}


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
    check({"query": "... N Q", "key": "... M K"} | WEIGHTS, query, key, w_query, w_key, w_score)
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
    check({"query": "... N D", "key": "... M D"}, query, key)
    dtype, (query, key) = query.dtype, wide(query, key)
    return narrow(scaled_products(query, key), dtype)


def scaled_products(query: Array, key: Array) -> Float[Array, "... N M"]:
    s = query @ key.mT
    s /= math.sqrt(query.shape[-1])
    return s
