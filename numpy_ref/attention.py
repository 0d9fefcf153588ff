"""
Attention as three stacked matrix products at most, forward, and six backward;
:mod:`numpy_ref.hidden_keys` keeps hidden keys out.
"""

from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

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
from .shapes import hold, hold_mask

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
    hold(score=(score, "... N M"))
    hold_mask("mask", mask, score.shape, floats=True)
    return weigh(hide(score, mask))


@rounds_once
def softmax_grad(
    d_output: Float[ndarray, "... N M"], score: Float[ndarray, "... N M"], mask: Mask = None
) -> tuple[ndarray, ...]:
    """
    See :func:`spec.attention.softmax_grad`.

    The weights recomputed, all rows at once.
    """
    hold(score=(score, "... N M"), d_output=(d_output, "... N M"))
    hold_mask("mask", mask, score.shape, floats=True)
    score = hide(score, mask)
    d_score = weights_grad(d_output, weigh(score), score == HIDDEN)
    return d_score, *mask_grad(d_score, mask)


@rounds_once
def dropout(weights: Float[ndarray, "..."], keep: Keep, p: float) -> Float[ndarray, "..."]:
    """
    See :func:`spec.attention.dropout`.

    One division and one choice, always into a fresh array.
    """
    hold_draw(keep, p)
    hold(weights=(weights, "..."))
    hold_mask("keep", keep, weights.shape)
    return np.array(dropped(weights, keep, p))


@rounds_once
def dropout_grad(
    d_output: Float[ndarray, "..."], weights: Float[ndarray, "..."], keep: Keep, p: float
) -> tuple[Float[ndarray, "..."]]:
    """
    See :func:`spec.attention.dropout_grad`.

    The same division and choice as forward, of the gradient.
    """
    hold_draw(keep, p)
    hold(weights=(weights, "..."), d_output=(d_output, "..."))
    hold_mask("keep", keep, weights.shape)
    return (np.array(dropped(d_output, keep, p)),)


def hold_draw(keep: Any, p: Any) -> None:
    if not isinstance(p, (int, float)) or not 0 <= p < 1:
        raise ValueError(f"p: wanted a number with 0 <= p < 1, got {p!r}")
    if p > 0 and keep is None:
        raise ValueError(f"keep: wanted a boolean array, because p={p}, got None")


def hold_masks(mask: Any, keep: Any, p: Any, shape: tuple[int, ...]) -> None:
    hold_mask("mask", mask, shape, floats=True)
    hold_mask("keep", keep, shape)
    hold_draw(keep, p)


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
    hold_masks(mask, keep, p, additive_shape(query, key, value, w_query, w_key, w_score))
    return attended(hide(additive_score(query, key, w_query, w_key, w_score), mask), value, keep, p)


def additive_shape(
    query: Any, key: Any, value: Any, w_query: Any, w_key: Any, w_score: Any
) -> tuple[int, ...]:
    """The score's shape, once the arrays fit together."""
    inputs = {"query": (query, "B N Q"), "key": (key, "B M K"), "value": (value, "B M E")}
    at = hold(**inputs, w_query=(w_query, "A Q"), w_key=(w_key, "A K"), w_score=(w_score, "A"))
    return at["B"], at["N"], at["M"]


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
    shape = additive_shape(query, key, value, w_query, w_key, w_score)
    hold(query=(query, "B N Q"), value=(value, "B M E"), d_output=(d_output, "B N E"))
    hold_masks(mask, keep, p, shape)
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
    at = hold(query=(query, "B H N D"), key=(key, "B H M D"), value=(value, "B H M E"))
    hold_masks(mask, keep, p, (at["B"], at["H"], at["N"], at["M"]))
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
    at = hold(
        query=(query, "B H N D"),
        key=(key, "B H M D"),
        value=(value, "B H M E"),
        d_output=(d_output, "B H N E"),
    )
    hold_masks(mask, keep, p, (at["B"], at["H"], at["N"], at["M"]))
    score = hide(query @ key.mT / sqrt(at["D"]), mask)
    d_score, d_value = attended_grad(d_output, score, value, keep, p)
    d_query, d_key = products_grad(d_score / sqrt(at["D"]), score == HIDDEN, query, key)
    return d_query, d_key, d_value, *mask_grad(d_score, mask)
