"""Scores: how well a query fits a key, before any mask and any softmax."""

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from attnverify.contract.attention import ADDITIVE_SCORE, D_SCORE, SCALED_SCORE
from attnverify.contract.shapes import check

from .arrays import ARRAYS

__all__ = [
    "additive_score",
    "additive_score_grad",
    "scaled_dot_product_score",
    "scaled_dot_product_score_grad",
]


def additive_score(
    query: Float[ndarray, "... N Q"],
    key: Float[ndarray, "... M K"],
    w_query: Float[ndarray, "A Q"],
    w_key: Float[ndarray, "A K"],
    w_score: Float[ndarray, "A"],
) -> Float[ndarray, "... N M"]:
    r"""
    One hidden layer that looks at a query and a key together (Bahdanau's score).

    .. math:: s_{ij} = \sum_a w_a \tanh\Big(\sum_q W^Q_{aq}\, q_{iq} + \sum_k W^K_{ak}\, k_{jk}\Big)

    1. Query and key may differ in width (Q and K); both are projected to the hidden width A.
    2. The tanh is inside the sum over A: the score is bounded by :math:`\sum_a |w_a|`.
    3. There is no scale and no bias.
    4. N = 1 and M = 1 are sizes like any other: the hidden axis A is summed away, and no other axis
       is dropped.

    >>> query, key = np.array([[0.0], [1.0]]), np.array([[0.0], [-1.0], [50.0]])
    >>> one = np.array([[1.0]])
    >>> additive_score(query, key, one, one, np.array([2.0])).round(3).tolist()
    [[0.0, -1.523, 2.0], [1.523, 0.0, 2.0]]

    Source: Bahdanau et al. 2015, A.1.2 (seed 001, section 2.1).

    Erratum: the hidden axis is dropped by ``.squeeze()`` without an axis (seed 001; OpenNMT-py PR
    #109), which also drops every other axis of size 1: with N = 1 the attention's output is [B B E]
    in silence ([1 E] for B = 1); with M = 1 the softmax runs over the queries, and the product with
    the values raises. B = 1 alone does no harm.
    """
    check(ARRAYS, ADDITIVE_SCORE, query, key, w_query, w_key, w_score)
    q = np.einsum("...nq,aq->...na", query, w_query)
    k = np.einsum("...mk,ak->...ma", key, w_key)
    return np.einsum("a,...nma->...nm", w_score, np.tanh(q[..., :, None, :] + k[..., None, :, :]))


def scaled_dot_product_score(
    query: Float[ndarray, "... N D"], key: Float[ndarray, "... M D"]
) -> Float[ndarray, "... N M"]:
    r"""
    The inner product of a query and a key, divided by the root of their width.

    .. math:: s_{ij} = \frac{1}{\sqrt{D}} \sum_d q_{id}\, k_{jd}

    1. D is the width of one head, not of the model.
    2. Independent q and k with mean 0 and variance 1 give scores of variance 1, whatever D is: that
       is what the root is for.

    >>> scaled_dot_product_score(
    ...     np.array([[1.0, 2.0, 3.0, 4.0]]),
    ...     np.array([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, -1.0]]),
    ... )
    array([[ 5., -2.]])

    Source: Vaswani et al. 2017, equation 1 (seed 001, section 2.2).

    Erratum: a comment in a tutorial for TensorFlow 2 (seed 003) divides by ``dk`` where its code,
    rightly, divides by the root.
    """
    check(ARRAYS, SCALED_SCORE, query, key)
    D = query.shape[-1]
    return np.einsum("...nd,...md->...nm", query, key) / np.sqrt(D)


def additive_score_grad(
    d_output: Float[ndarray, "... N M"],
    query: Float[ndarray, "... N Q"],
    key: Float[ndarray, "... M K"],
    w_query: Float[ndarray, "A Q"],
    w_key: Float[ndarray, "A K"],
    w_score: Float[ndarray, "A"],
) -> tuple[ndarray, ...]:
    r"""
    The gradients of :func:`additive_score` by query, key, w_query, w_key and w_score.

    With :math:`t_{ija} = \tanh\big(\sum_q W^Q_{aq} q_{iq} + \sum_k W^K_{ak} k_{jk}\big)`,

    .. math:: \bar w_a = \sum_{ij} \bar s_{ij} t_{ija}, \qquad \bar z_{ija} = \bar s_{ij} w_a (1 -
              t_{ija}^2), \qquad
              \bar q_{iq} = \sum_{ja} \bar z_{ija} W^Q_{aq}, \qquad \bar W^Q_{aq} = \sum_{ija} \bar
              z_{ija} q_{iq}

    and likewise for key and :math:`W^K`.

    1. The weights' gradients are summed over the leading axes too.

    >>> query, key, one = np.zeros((1, 1)), np.zeros((2, 1)), np.ones((1, 1))
    >>> d_query, d_key, *_ = additive_score_grad(
    ...     np.array([[1.0, 2.0]]), query, key, one, one, np.ones(1)
    ... )
    >>> d_query.tolist(), d_key.tolist()
    ([[3.0]], [[1.0], [2.0]])

    Source: Bahdanau et al. 2015, A.1.2, by the chain rule.
    """
    check(ARRAYS, ADDITIVE_SCORE + D_SCORE, query, key, w_query, w_key, w_score, d_output)
    d_query, d_key, d_w_query, d_w_key, d_w_score = (
        np.zeros_like(x) for x in (query, key, w_query, w_key, w_score)
    )
    for *batch, i, j in np.ndindex(d_output.shape):
        b = tuple(batch)
        t = np.tanh(w_query @ query[b][i] + w_key @ key[b][j])
        d_z = d_output[b][i, j] * w_score * (1 - t**2)
        d_w_score += d_output[b][i, j] * t
        d_query[b][i] += d_z @ w_query
        d_key[b][j] += d_z @ w_key
        d_w_query += np.outer(d_z, query[b][i])
        d_w_key += np.outer(d_z, key[b][j])
    return d_query, d_key, d_w_query, d_w_key, d_w_score


def scaled_dot_product_score_grad(
    d_output: Float[ndarray, "... N M"],
    query: Float[ndarray, "... N D"],
    key: Float[ndarray, "... M D"],
) -> tuple[Float[ndarray, "... N D"], Float[ndarray, "... M D"]]:
    r"""
    The gradients of :func:`scaled_dot_product_score` by query and key.

    .. math:: \bar q_{id} = \frac{1}{\sqrt D} \sum_j \bar s_{ij} k_{jd}, \qquad \bar k_{jd} =
              \frac{1}{\sqrt D} \sum_i \bar s_{ij} q_{id}

    1. The scale is that of the score: once, on each of the two.

    >>> d_query, d_key = scaled_dot_product_score_grad(
    ...     np.array([[1.0, 2.0]]),
    ...     np.array([[1.0, 0.0, 0.0, 0.0]]),
    ...     np.array([[2.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]]),
    ... )
    >>> d_query.tolist(), d_key[:, 0].tolist()
    ([[1.0, 2.0, 0.0, 0.0]], [0.5, 1.0])

    Source: Vaswani et al. 2017, equation 1, by the chain rule.
    """
    check(ARRAYS, SCALED_SCORE + D_SCORE, query, key, d_output)
    scale = 1 / np.sqrt(query.shape[-1])
    d_query = scale * np.einsum("...nm,...md->...nd", d_output, key)
    return d_query, scale * np.einsum("...nm,...nd->...md", d_output, query)
