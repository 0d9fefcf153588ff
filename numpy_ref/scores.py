"""Scores by matrix products; the additive one in blocks of queries."""

from math import sqrt

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from .rounding import rounds_once
from .shapes import hold

__all__ = ["additive_score", "scaled_dot_product_score"]

BLOCK = 2**20  # numbers in one block of hidden layers [n M A]: more would leave the cache


@rounds_once
def additive_score(
    query: Float[ndarray, "... N Q"],
    key: Float[ndarray, "... M K"],
    w_query: Float[ndarray, "A Q"],
    w_key: Float[ndarray, "A K"],
    w_score: Float[ndarray, "A"],
) -> Float[ndarray, "... N M"]:
    """
    See :func:`spec.scores.additive_score`.

    Projects first, then broadcasts a block of queries against all keys.
    """
    hold(
        query=(query, "... N Q"),
        key=(key, "... M K"),
        w_query=(w_query, "A Q"),
        w_key=(w_key, "A K"),
        w_score=(w_score, "A"),
    )
    q, k = query @ w_query.T, key @ w_key.T
    blocks = [hidden_layer(q[..., rows, :], k) @ w_score for rows in row_blocks(q, k)]
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=-2)


def hidden_layer(q: ndarray, k: ndarray) -> Float[ndarray, "... N M A"]:
    z = q[..., :, None, :] + k[..., None, :, :]
    return np.tanh(z, out=z)


def row_blocks(q: ndarray, k: ndarray) -> list[slice]:
    """The query axis in slices whose hidden layer has about BLOCK numbers."""
    N, rows = q.shape[-2], max(1, BLOCK // k.size)
    return [slice(at, at + rows) for at in range(0, N, rows)]


@rounds_once
def scaled_dot_product_score(
    query: Float[ndarray, "... N D"], key: Float[ndarray, "... M D"]
) -> Float[ndarray, "... N M"]:
    """
    See :func:`spec.scores.scaled_dot_product_score`.

    One stacked matrix product: a key that is not finite stays in its own column.
    """
    D = hold(query=(query, "... N D"), key=(key, "... M D"))["D"]
    return query @ key.mT / sqrt(D)
