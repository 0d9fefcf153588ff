"""
Attention as three stacked matrix products at most, forward, and six backward;
:mod:`numpy_ref.hidden_keys` keeps hidden keys out.
"""

from math import sqrt

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

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

from .arrays import ARRAYS
from .hidden_keys import (
    HIDDEN,
    attended,
    attended_grad,
    dropped,
    hide,
    products_grad,
    weigh,
    weights_grad,
)
from .rounding import rounds_once
from .scores import additive_score, layer_grad, projection_grad

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

Mask = Bool[ndarray, "..."] | Float[ndarray, "..."] | None
Keep = Bool[ndarray, "..."] | None


@rounds_once
def softmax(score: Float[ndarray, "... N M"], mask: Mask = None) -> Float[ndarray, "... N M"]:
    """
    See :func:`spec.attention.softmax`.

    All rows at once, hidden scores as minus infinity: w = e / sum(e), never exp(s - lse), which
    errs by u |lse|.
    """
    check_softmax(ARRAYS, score, mask)
    return weigh(hide(score, mask))


@rounds_once
def softmax_grad(
    d_output: Float[ndarray, "... N M"], score: Float[ndarray, "... N M"], mask: Mask = None
) -> tuple[ndarray, ...]:
    """
    See :func:`spec.attention.softmax_grad`.

    The weights recomputed, all rows at once.
    """
    check(ARRAYS, D_SCORE, d_output, **check_softmax(ARRAYS, score, mask))
    score = hide(score, mask)
    d_score = weights_grad(d_output, weigh(score), score == HIDDEN)
    return d_score, *mask_grad(d_score, mask)


@rounds_once
def dropout(weights: Float[ndarray, "..."], keep: Keep, p: float) -> Float[ndarray, "..."]:
    """
    See :func:`spec.attention.dropout`.

    One division and one choice, always into a fresh array.
    """
    check_dropout(ARRAYS, weights, keep, p)
    return np.array(dropped(weights, keep, p))


@rounds_once
def dropout_grad(
    d_output: Float[ndarray, "..."], weights: Float[ndarray, "..."], keep: Keep, p: float
) -> tuple[Float[ndarray, "..."]]:
    """
    See :func:`spec.attention.dropout_grad`.

    The same division and choice as forward, of the gradient.
    """
    check(ARRAYS, D_WEIGHTS, d_output, **check_dropout(ARRAYS, weights, keep, p))
    return (np.array(dropped(d_output, keep, p)),)


def mask_grad(d_score: ndarray, mask: Mask) -> tuple[ndarray, ...]:
    """The gradient by a float mask, summed over the axes that it was broadcast along."""
    if mask is None or mask.dtype == bool:
        return ()
    front = d_score.ndim - mask.ndim
    stretched = tuple(
        axis for axis, size in enumerate(mask.shape, front) if size < d_score.shape[axis]
    )
    summed = d_score.sum(axis=(*range(front), *stretched), keepdims=True)
    return (summed.reshape(mask.shape),)


@rounds_once
def additive_attention(
    query: Float[ndarray, "B N Q"],
    key: Float[ndarray, "B M K"],
    value: Float[ndarray, "B M E"],
    w_query: Float[ndarray, "A Q"],
    w_key: Float[ndarray, "A K"],
    w_score: Float[ndarray, "A"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[ndarray, "B N E"]:
    """
    See :func:`spec.attention.additive_attention`.

    The blocked :func:`numpy_ref.scores.additive_score`, then two stacked products.
    """
    check_additive(ARRAYS, (query, key, value, w_query, w_key, w_score), mask, keep, p)
    return attended(hide(additive_score(query, key, w_query, w_key, w_score), mask), value, keep, p)


@rounds_once
def additive_attention_grad(
    d_output: Float[ndarray, "B N E"],
    query: Float[ndarray, "B N Q"],
    key: Float[ndarray, "B M K"],
    value: Float[ndarray, "B M E"],
    w_query: Float[ndarray, "A Q"],
    w_key: Float[ndarray, "A K"],
    w_score: Float[ndarray, "A"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[ndarray, ...]:
    """
    See :func:`spec.attention.additive_attention_grad`.

    The hidden layer is recomputed in blocks; its gradient is summed over keys and over queries
    before any projection.
    """
    inputs = query, key, value, w_query, w_key, w_score
    check(ARRAYS, D_ADDITIVE, d_output, **check_additive(ARRAYS, inputs, mask, keep, p))
    score = hide(additive_score(query, key, w_query, w_key, w_score), mask)
    d_score, d_value = attended_grad(d_output, score, value, keep, p)
    sees = score != HIDDEN
    d_q, d_k, d_w_score = layer_grad(d_score, sees, query @ w_query.T, key @ w_key.T, w_score)
    d_query, d_w_query = projection_grad(d_q, query, w_query, sees.any(axis=-1))
    d_key, d_w_key = projection_grad(d_k, key, w_key, sees.any(axis=-2))
    return d_query, d_key, d_value, d_w_query, d_w_key, d_w_score, *mask_grad(d_score, mask)


@rounds_once
def scaled_dot_product_attention(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[ndarray, "B H N E"]:
    """
    See :func:`spec.attention.scaled_dot_product_attention`.

    Two stacked matrix products around a softmax; the score [B H N M] is held whole.
    """
    at = check_attention(ARRAYS, query, key, value, mask, keep, p)
    return attended(hide(query @ key.mT / sqrt(at["D"]), mask), value, keep, p)


@rounds_once
def scaled_dot_product_attention_grad(
    d_output: Float[ndarray, "B H N E"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[ndarray, ...]:
    """
    See :func:`spec.attention.scaled_dot_product_attention_grad`.

    The chain rule in matrix form, every score and weight recomputed.
    """
    at = check_attention(ARRAYS, query, key, value, mask, keep, p)
    check(ARRAYS, D_HEADS, d_output, **at)
    score = hide(query @ key.mT / sqrt(at["D"]), mask)
    d_score, d_value = attended_grad(d_output, score, value, keep, p)
    d_query, d_key = products_grad(d_score / sqrt(at["D"]), score == HIDDEN, query, key)
    return d_query, d_key, d_value, *mask_grad(d_score, mask)
