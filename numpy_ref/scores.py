"""Scores by matrix products; the additive one in blocks of queries."""

from math import sqrt

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from attnverify.contract.attention import ADDITIVE_SCORE, D_SCORE, SCALED_SCORE
from attnverify.contract.shapes import check

from .arrays import ARRAYS
from .rounding import rounds_once

__all__ = [
    "additive_score",
    "additive_score_grad",
    "scaled_dot_product_score",
    "scaled_dot_product_score_grad",
]

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
    check(ARRAYS, ADDITIVE_SCORE, query, key, w_query, w_key, w_score)
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
    at = check(ARRAYS, SCALED_SCORE, query, key)
    return query @ key.mT / sqrt(at["D"])


@rounds_once
def additive_score_grad(
    d_output: Float[ndarray, "... N M"],
    query: Float[ndarray, "... N Q"],
    key: Float[ndarray, "... M K"],
    w_query: Float[ndarray, "A Q"],
    w_key: Float[ndarray, "A K"],
    w_score: Float[ndarray, "A"],
) -> tuple[ndarray, ...]:
    """
    See :func:`spec.scores.additive_score_grad`.

    The leading axes as one; the hidden layer is recomputed in blocks, and its gradient summed over
    keys and over queries before any projection.
    """
    check(ARRAYS, ADDITIVE_SCORE + D_SCORE, query, key, w_query, w_key, w_score, d_output)
    d, q, k = (x.reshape(-1, *x.shape[-2:]) for x in (d_output, query, key))
    sees = np.ones(d.shape, bool)
    d_q, d_k, d_w_score = layer_grad(d, sees, q @ w_query.T, k @ w_key.T, w_score)
    d_query, d_w_query = projection_grad(d_q, q, w_query, sees[..., 0])
    d_key, d_w_key = projection_grad(d_k, k, w_key, sees[..., 0, :])
    return d_query.reshape(query.shape), d_key.reshape(key.shape), d_w_query, d_w_key, d_w_score


def layer_grad(
    d_score: ndarray, sees: ndarray, q: ndarray, k: ndarray, w_score: ndarray
) -> tuple[ndarray, ndarray, ndarray]:
    """
    The gradients of tanh(q + k) @ w_score by q [B N A], k [B M A] and w_score [A], over the pairs
    that see each other.
    """
    d_q, d_k, d_w_score = np.zeros_like(q), np.zeros_like(k), np.zeros_like(w_score)
    for rows in row_blocks(q, k):
        t_bnma = np.where(sees[:, rows, :, None], hidden_layer(q[:, rows], k), 0)
        d_score_rows = d_score[:, rows]
        d_w_score += d_score_rows.reshape(-1) @ t_bnma.reshape(-1, len(w_score))
        slope = (1 - t_bnma * t_bnma) * d_score_rows[..., None]
        d_q[:, rows] = slope.sum(axis=2)
        d_k += slope.sum(axis=1)
    return d_q * w_score, d_k * w_score, d_w_score


def projection_grad(
    d_y: ndarray, x: ndarray, weight: ndarray, met: ndarray
) -> tuple[ndarray, ndarray]:
    """The gradients of x @ weight.T; a row of x that meets nobody is absent."""
    met = met[..., None]
    d_y, x = (np.where(met, part, 0).reshape(-1, part.shape[-1]) for part in (d_y, x))
    d_x = np.where(met, (d_y @ weight).reshape(*met.shape[:-1], -1), 0)
    return d_x, d_y.T @ x


@rounds_once
def scaled_dot_product_score_grad(
    d_output: Float[ndarray, "... N M"],
    query: Float[ndarray, "... N D"],
    key: Float[ndarray, "... M D"],
) -> tuple[Float[ndarray, "... N D"], Float[ndarray, "... M D"]]:
    """
    See :func:`spec.scores.scaled_dot_product_score_grad`.

    Two stacked matrix products, scaled after them.
    """
    at = check(ARRAYS, SCALED_SCORE + D_SCORE, query, key, d_output)
    root = sqrt(at["D"])
    return d_output @ key / root, d_output.mT @ query / root
