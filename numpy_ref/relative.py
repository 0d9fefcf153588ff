"""
Relative positions: all distances by one matrix product, brought to their keys by strides.

The row that a pair reads depends on j - i alone, so a product with every row of a table is already
the position score: its element (i, j) stands N - 1 - i columns to the right of column j.
:func:`skewed` is that view, in both directions.
"""

from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from attnverify.contract.arguments import check_even, check_sizes
from attnverify.contract.attention import (
    D_HEADS,
    D_PRODUCTS,
    check_learned,
    check_transformer_xl,
    check_visible_heads,
)
from attnverify.contract.shapes import check

from .arrays import ARRAYS
from .attention import Keep
from .hidden_keys import HIDDEN, attended, attended_grad, hide, products_grad
from .masks import causal_mask
from .rounding import float_dtype, rounds_once
from .shifts import rel_shift, rel_shift_grad

__all__ = [
    "learned_relative_attention",
    "learned_relative_attention_grad",
    "learned_relative_score",
    "learned_relative_score_grad",
    "sinusoidal_positions",
    "transformer_xl_attention",
    "transformer_xl_attention_grad",
    "transformer_xl_score",
    "transformer_xl_score_grad",
]

Visible = Bool[ndarray, "..."] | None


def sinusoidal_positions(M: int, F: int, dtype: Any = "float64") -> Float[ndarray, "M F"]:
    """
    See :func:`spec.relative.sinusoidal_positions`.

    An outer product of distances and frequencies in float64, rounded once to ``dtype``.
    """
    check_sizes(ARRAYS, M=M, F=F)
    check_even(F)
    angle = np.outer(np.arange(M)[::-1], np.power(1e4, -np.arange(0, F, 2) / F))
    positions = np.empty((M, F), float_dtype(dtype))
    positions[:, : F // 2], positions[:, F // 2 :] = np.sin(angle), np.cos(angle)
    return positions


def skewed(x: Float[ndarray, "... N W"]) -> Float[ndarray, "... N M"]:
    """
    The view [N M] of x [N N+M-1] whose element (i, j) is x[i, j + N - 1 - i]; x is contiguous.
    """
    *lead, N, W = x.shape
    *outer, row, item = x.strides
    return np.ndarray((*lead, N, W - N + 1), x.dtype, x, (N - 1) * item, (*outer, row - item, item))


def spread(y: Float[ndarray, "... N M"], fill: float | bool) -> Float[ndarray, "... N W"]:
    """
    The adjoint of :func:`skewed`: the x of which y is the view, ``fill`` where the view does not
    reach.
    """
    *lead, N, M = y.shape
    x = np.full((*lead, N, N + M - 1), fill, y.dtype)
    skewed(x)[...] = y
    return x


def hide_behind(score: Float[ndarray, "B H N M"], visible: Visible) -> Float[ndarray, "B H N M"]:
    """Hide the keys that lie behind their query, and those that ``visible`` hides."""
    causal = causal_mask(*score.shape[-2:])
    return hide(score, causal if visible is None else causal & visible)


@rounds_once
def transformer_xl_score(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    position: Float[ndarray, "H M D"],
    u: Float[ndarray, "H D"],
    v: Float[ndarray, "H D"],
) -> Float[ndarray, "B H N M"]:
    """
    See :func:`spec.relative.transformer_xl_score`.

    Two stacked products, the second moved by :func:`numpy_ref.shifts.rel_shift`.
    """
    at = check_transformer_xl(ARRAYS, query, key, position, u, v)
    content = (query + u[:, None]) @ key.mT
    return (content + rel_shift((query + v[:, None]) @ position.mT)) / sqrt(at["D"])


@rounds_once
def transformer_xl_score_grad(
    d_output: Float[ndarray, "B H N M"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    position: Float[ndarray, "H M D"],
    u: Float[ndarray, "H D"],
    v: Float[ndarray, "H D"],
) -> tuple[ndarray, ...]:
    """
    See :func:`spec.relative.transformer_xl_score_grad`.

    The gradient moved back by :func:`numpy_ref.shifts.rel_shift_grad`, then four stacked products.
    """
    at = check_transformer_xl(ARRAYS, query, key, position, u, v)
    check(ARRAYS, D_PRODUCTS, d_output, **at)
    g = d_output / sqrt(at["D"])
    (by_row,) = rel_shift_grad(g, g)
    d_content, d_distance = g @ key, by_row @ position
    return (
        d_content + d_distance,
        g.mT @ (query + u[:, None]),
        (by_row.mT @ (query + v[:, None])).sum(0),
        d_content.sum((0, 2)),
        d_distance.sum((0, 2)),
    )


@rounds_once
def transformer_xl_attention(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    position: Float[ndarray, "H M D"],
    u: Float[ndarray, "H D"],
    v: Float[ndarray, "H D"],
    visible: Visible = None,
) -> Float[ndarray, "B H N E"]:
    """
    See :func:`spec.relative.transformer_xl_attention`.

    The whole score at once; what the shift wraps around is hidden with the causal mask.
    """
    return attend_transformer_xl(query, key, value, position, u, v, visible)


def attend_transformer_xl(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    position: Float[ndarray, "H M D"],
    u: Float[ndarray, "H D"],
    v: Float[ndarray, "H D"],
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[ndarray, "B H N E"]:
    """:func:`transformer_xl_attention` with the draw of a dropout on the weights."""
    check_visible_heads(ARRAYS, query, key, value, visible, keep, p)
    score = hide_behind(transformer_xl_score(query, key, position, u, v), visible)
    return attended(score, value, keep, p)


@rounds_once
def transformer_xl_attention_grad(
    d_output: Float[ndarray, "B H N E"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    position: Float[ndarray, "H M D"],
    u: Float[ndarray, "H D"],
    v: Float[ndarray, "H D"],
    visible: Visible = None,
) -> tuple[ndarray, ...]:
    """
    See :func:`spec.relative.transformer_xl_attention_grad`.

    The score's gradient, spread back over the rows of ``position``, gives its two gradients as
    matrix products.
    """
    return attend_transformer_xl_grad(d_output, query, key, value, position, u, v, visible)


def attend_transformer_xl_grad(
    d_output: Float[ndarray, "B H N E"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    position: Float[ndarray, "H M D"],
    u: Float[ndarray, "H D"],
    v: Float[ndarray, "H D"],
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[ndarray, ...]:
    """The gradients of :func:`attend_transformer_xl` with the draw of a dropout."""
    at = check_visible_heads(ARRAYS, query, key, value, visible, keep, p)
    check(ARRAYS, D_HEADS, d_output, **at)
    score = hide_behind(transformer_xl_score(query, key, position, u, v), visible)
    d_score, d_value = attended_grad(d_output, score, value, keep, p)
    M, D = key.shape[2:]
    d_score, hidden = d_score / sqrt(D), score == HIDDEN
    d_content, d_key = products_grad(d_score, hidden, query + u[:, None], key)
    # causal pairs never read beyond the last of the M rows
    by_row = spread(d_score, 0)[..., :M], spread(hidden, True)[..., :M]
    d_distance, d_position = products_grad(*by_row, query + v[:, None], position)
    return (
        d_content + d_distance,
        d_key,
        d_value,
        d_position.sum(0),
        d_content.sum((0, 2)),
        d_distance.sum((0, 2)),
    )


def table_slice(
    query: Any,
    key: Any,
    key_pos_embeddings: Any,
    key_pos_bias: Any,
    query_pos_bias: Any,
    align: Any,
) -> slice:
    """The N + M - 1 rows of the tables that some pair reads, the farthest past first."""
    tables = key_pos_embeddings, key_pos_bias, query_pos_bias
    at = check_learned(ARRAYS, query, key, tables, align)
    N, M, P = at["N"], at["M"], at["P"]
    first = P - M + 1 if align == "end" else P - N + 1
    return slice(first, first + N + M - 1)


@rounds_once
def learned_relative_score(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    key_pos_embeddings: Float[ndarray, "2P H D"],
    key_pos_bias: Float[ndarray, "2P H"],
    query_pos_bias: Float[ndarray, "H D"],
    align: str,
) -> Float[ndarray, "B H N M"]:
    """
    See :func:`spec.relative.learned_relative_score`.

    Every query against the N + M - 1 rows in reach, then a skewed view: no [N M D] table is ever
    gathered.
    """
    rows = table_slice(query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align)
    content = (query + query_pos_bias[:, None]) @ key.mT
    distance = query @ key_pos_embeddings[rows].transpose(1, 2, 0) + key_pos_bias[rows].T[:, None]
    return (content + skewed(np.ascontiguousarray(distance))) / sqrt(query.shape[-1])


@rounds_once
def learned_relative_score_grad(
    d_output: Float[ndarray, "B H N M"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    key_pos_embeddings: Float[ndarray, "2P H D"],
    key_pos_bias: Float[ndarray, "2P H"],
    query_pos_bias: Float[ndarray, "H D"],
    align: str,
) -> tuple[ndarray, ...]:
    """
    See :func:`spec.relative.learned_relative_score_grad`.

    The gradient, spread back over the rows in reach, gives the tables' gradients as matrix
    products.
    """
    rows = table_slice(query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align)
    B, H, N, M = (*query.shape[:3], key.shape[2])
    check(ARRAYS, D_PRODUCTS, d_output, B=B, H=H, N=N, M=M)
    g = d_output / sqrt(query.shape[-1])
    d_row, d_content = spread(g, 0), g @ key
    d_embeddings, d_bias = np.zeros_like(key_pos_embeddings), np.zeros_like(key_pos_bias)
    d_embeddings[rows] = (d_row.mT @ query).sum(0).swapaxes(0, 1)
    d_bias[rows] = d_row.sum((0, 2)).T
    d_query = d_content + d_row @ key_pos_embeddings[rows].swapaxes(0, 1)
    d_key = g.mT @ (query + query_pos_bias[:, None])
    return d_query, d_key, d_embeddings, d_bias, d_content.sum((0, 2))


@rounds_once
def learned_relative_attention(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    key_pos_embeddings: Float[ndarray, "2P H D"],
    key_pos_bias: Float[ndarray, "2P H"],
    query_pos_bias: Float[ndarray, "H D"],
    align: str,
    visible: Visible = None,
) -> Float[ndarray, "B H N E"]:
    """
    See :func:`spec.relative.learned_relative_attention`.

    The whole score at once, then two stacked products.
    """
    return attend_learned_relative(
        query, key, value, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible
    )


def attend_learned_relative(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    key_pos_embeddings: Float[ndarray, "2P H D"],
    key_pos_bias: Float[ndarray, "2P H"],
    query_pos_bias: Float[ndarray, "H D"],
    align: str,
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[ndarray, "B H N E"]:
    """:func:`learned_relative_attention` with the draw of a dropout on the weights."""
    check_visible_heads(ARRAYS, query, key, value, visible, keep, p)
    score = learned_relative_score(
        query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align
    )
    return attended(hide(score, visible), value, keep, p)


@rounds_once
def learned_relative_attention_grad(
    d_output: Float[ndarray, "B H N E"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    key_pos_embeddings: Float[ndarray, "2P H D"],
    key_pos_bias: Float[ndarray, "2P H"],
    query_pos_bias: Float[ndarray, "H D"],
    align: str,
    visible: Visible = None,
) -> tuple[ndarray, ...]:
    """
    See :func:`spec.relative.learned_relative_attention_grad`.

    The score's gradient, spread back over the rows in reach, gives the tables' gradients as matrix
    products.
    """
    return attend_learned_relative_grad(
        d_output,
        query,
        key,
        value,
        key_pos_embeddings,
        key_pos_bias,
        query_pos_bias,
        align,
        visible,
    )


def attend_learned_relative_grad(
    d_output: Float[ndarray, "B H N E"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    key_pos_embeddings: Float[ndarray, "2P H D"],
    key_pos_bias: Float[ndarray, "2P H"],
    query_pos_bias: Float[ndarray, "H D"],
    align: str,
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[ndarray, ...]:
    """The gradients of :func:`attend_learned_relative` with the draw of a dropout."""
    at = check_visible_heads(ARRAYS, query, key, value, visible, keep, p)
    check(ARRAYS, D_HEADS, d_output, **at)
    score = learned_relative_score(
        query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align
    )
    rows = table_slice(query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align)
    score = hide(score, visible)
    d_score, d_value = attended_grad(d_output, score, value, keep, p)
    d_score, hidden = d_score / sqrt(query.shape[-1]), score == HIDDEN
    d_content, d_key = products_grad(d_score, hidden, query + query_pos_bias[:, None], key)
    d_row = spread(d_score, 0)
    d_distance, d_table = products_grad(
        d_row, spread(hidden, True), query, key_pos_embeddings[rows].swapaxes(0, 1)
    )
    d_embeddings, d_bias = np.zeros_like(key_pos_embeddings), np.zeros_like(key_pos_bias)
    d_embeddings[rows], d_bias[rows] = d_table.sum(0).swapaxes(0, 1), d_row.sum((0, 2)).T
    return d_content + d_distance, d_key, d_value, d_embeddings, d_bias, d_content.sum((0, 2))
