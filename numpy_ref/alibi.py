"""ALiBi by broadcasting: slopes [H 1 1] against distances [N M]."""

from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from attnverify.contract.arguments import check_integer
from attnverify.contract.attention import D_HEADS, check_visible_heads
from attnverify.contract.masks import check_visible
from attnverify.contract.shapes import check

from .arrays import ARRAYS
from .hidden_keys import HIDDEN, attended, attended_grad, products_grad
from .relative import Visible, hide_behind
from .rounding import float_dtype, rounds_once

__all__ = ["alibi_attention", "alibi_attention_grad", "get_alibi_biases", "get_slopes"]


def get_slopes(n_heads: int, dtype: Any = "float64") -> Float[ndarray, "H"]:
    """
    See :func:`spec.alibi.get_slopes`.

    Powers of two from an array of exponents, in float64, rounded once to ``dtype``.
    """
    check_integer(ARRAYS, "n_heads", n_heads)
    n = 1 << (int(n_heads).bit_length() - 1)
    h = np.arange(int(n_heads))
    exponent = np.where(h < n, h + 1.0, h - n + 0.5) * (-8 / n)
    return np.exp2(exponent).astype(float_dtype(dtype))


def get_alibi_biases(
    n_heads: int, visible: Bool[ndarray, "N M"], dtype: Any = "float64"
) -> Float[ndarray, "H N M"]:
    """
    See :func:`spec.alibi.get_alibi_biases`.

    One running count for all heads, in float64, rounded once to ``dtype``.
    """
    check_visible(ARRAYS, visible)
    count = np.add.accumulate(visible, axis=1, dtype=np.float64)
    return np.multiply.outer(get_slopes(n_heads), count).astype(float_dtype(dtype), copy=False)


@rounds_once
def alibi_attention(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    visible: Visible = None,
) -> Float[ndarray, "B H N E"]:
    """
    See :func:`spec.alibi.alibi_attention`.

    The bias is a broadcast product of slopes and distances; two stacked matrix products around the
    softmax.
    """
    check_visible_heads(ARRAYS, query, key, value, visible)
    return attended(alibi_score(query, key, visible), value)


def alibi_score(query: ndarray, key: ndarray, visible: Visible) -> Float[ndarray, "B H N M"]:
    _, H, N, D = query.shape
    M = key.shape[2]
    score = query @ key.mT / sqrt(D)
    distance = np.subtract.outer(np.arange(M - N, M), np.arange(M)).astype(score.dtype)
    score -= get_slopes(H, score.dtype)[:, None, None] * distance
    return hide_behind(score, visible)


@rounds_once
def alibi_attention_grad(
    d_output: Float[ndarray, "B H N E"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    visible: Visible = None,
) -> tuple[Float[ndarray, "B H N D"], Float[ndarray, "B H M D"], Float[ndarray, "B H M E"]]:
    """
    See :func:`spec.alibi.alibi_attention_grad`.

    The chain rule in matrix form; the bias only moves the weights.
    """
    check(ARRAYS, D_HEADS, d_output, **check_visible_heads(ARRAYS, query, key, value, visible))
    score = alibi_score(query, key, visible)
    d_score, d_value = attended_grad(d_output, score, value)
    d_query, d_key = products_grad(d_score / sqrt(query.shape[-1]), score == HIDDEN, query, key)
    return d_query, d_key, d_value
