"""
Relative positions: one product with the rows of a table that can be read, and a skewed view that
costs nothing.
"""

import math
from types import ModuleType
from typing import Any

import cupy
from jaxtyping import Bool, Float

from attnverify.contract.arguments import check_even, check_sizes
from attnverify.contract.attention import (
    D_HEADS,
    D_PRODUCTS,
    check_learned,
    check_learned_attention,
    check_transformer_xl,
    check_xl_attention,
)
from attnverify.contract.shapes import check

from .arrays import ARRAYS, Array, default_module, float_dtype, ieee, narrow, wide
from .attention import (
    Keep,
    attend,
    finite,
    heads_grad,
    hide,
)
from .masks import causal
from .shifts import rel_shift, rel_shift_grad, skewed, unskewed

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

Visible = Bool[Array, "..."] | None


def sinusoidal_positions(M: int, F: int, dtype: Any = "float32") -> Float[Array, "M F"]:
    """
    See :func:`spec.relative.sinusoidal_positions`.

    Computed in float64 on the device where there is one, rounded once.
    """
    check_sizes(ARRAYS, M=M, F=F)
    check_even(F)
    return narrow(sinusoids(default_module(), M, F), float_dtype(dtype))


def sinusoids(xp: ModuleType, M: int, F: int) -> Float[Array, "M F"]:
    frequency = 10000.0 ** (xp.arange(F // 2, dtype="float64") * -2 / F)
    angle = xp.arange(M - 1, -1, -1, dtype="float64")[:, None] * frequency
    return xp.concatenate([xp.sin(angle), xp.cos(angle)], axis=-1)


@ieee
def transformer_xl_score(
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    position: Float[Array, "H M D"],
    u: Float[Array, "H D"],
    v: Float[Array, "H D"],
) -> Float[Array, "B H N M"]:
    """
    See :func:`spec.relative.transformer_xl_score`.

    Two batched matrix products; the position score is copied once to wrap as the specification
    says.
    """
    check_transformer_xl(ARRAYS, query, key, position, u, v)
    dtype, (query, key, position, u, v) = query.dtype, wide(query, key, position, u, v)
    score = (query + u[:, None]) @ key.mT + rel_shift((query + v[:, None]) @ position.mT)
    return narrow(score / math.sqrt(query.shape[-1]), dtype)


@ieee
def transformer_xl_score_grad(
    d_output: Float[Array, "B H N M"],
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    position: Float[Array, "H M D"],
    u: Float[Array, "H D"],
    v: Float[Array, "H D"],
) -> tuple[Array, ...]:
    """
    See :func:`spec.relative.transformer_xl_score_grad`.

    The scaled gradient is copied once to undo the shift; four batched matrix products.
    """
    inputs = query, key, position, u, v
    check(ARRAYS, D_PRODUCTS, d_output, **check_transformer_xl(ARRAYS, *inputs))
    d_output, query, key, position, u, v = wide(d_output, *inputs)
    g = d_output / math.sqrt(query.shape[-1])
    (by_row,) = rel_shift_grad(g, g)
    d_content, d_distance = g @ key, by_row @ position
    grads = (
        d_content + d_distance,
        g.mT @ (query + u[:, None]),
        (by_row.mT @ (query + v[:, None])).sum(axis=0),
        d_content.sum(axis=(0, 2)),
        d_distance.sum(axis=(0, 2)),
    )
    return tuple(narrow(d_x, x.dtype) for d_x, x in zip(grads, inputs, strict=True))


def skewed_score(
    content: Array, key: Array, distance: Array, table: Float[Array, "H W D"], bias: Any = None
) -> Array:
    """
    The scaled sum of content . key_j and distance . table_{N-1-i+j}, the latter read through a
    skewed view.
    """
    score, x = content @ key.mT, distance @ table.mT
    if bias is not None:
        x += bias
    score += skewed(x, key.shape[-2])
    score /= math.sqrt(key.shape[-1])
    return score


def table_grad(
    g: Float[Array, "B H N M"],
    distance: Float[Array, "B H N D"],
    table: Float[Array, "H W D"],
) -> tuple[Float[Array, "B H N D"], Float[Array, "H W D"], Float[Array, "B H N W"]]:
    """
    The gradients of the products distance_i . table_{N-1-i+j} by both, and by the products
    themselves before the skew.
    """
    d_x = unskewed(g)[..., : table.shape[1]]
    return d_x @ finite(table), (d_x.mT @ finite(distance)).sum(axis=0), d_x


@ieee
def transformer_xl_attention(
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    position: Float[Array, "H M D"],
    u: Float[Array, "H D"],
    v: Float[Array, "H D"],
    visible: Visible = None,
) -> Float[Array, "B H N E"]:
    """
    See :func:`spec.relative.transformer_xl_attention`.

    What the causal mask shows of rel_shift is a view of the position score: no copy, no wrapping.
    """
    return attend_transformer_xl(query, key, value, position, u, v, visible)


def attend_transformer_xl(
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    position: Float[Array, "H M D"],
    u: Float[Array, "H D"],
    v: Float[Array, "H D"],
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Array, "B H N E"]:
    """:func:`transformer_xl_attention` with the draw of a dropout on the weights."""
    check_xl_attention(ARRAYS, (query, key, value), (position, u, v), visible, keep, p)
    dtype = query.dtype
    query, key, value, position, u, v = wide(query, key, value, position, u, v)
    score = transformer_xl_causal_score(query, key, position, u, v, visible)
    return narrow(attend(score, value, keep, p), dtype)


def transformer_xl_causal_score(
    query: Array, key: Array, position: Array, u: Array, v: Array, visible: Visible
) -> Array:
    """The score, minus infinity where the causal row or ``visible`` hides."""
    score = skewed_score(query + u[:, None], key, query + v[:, None], position)
    N, M = score.shape[-2:]
    return hide(score, causal(cupy.get_array_module(score), N, M, visible))


@ieee
def transformer_xl_attention_grad(
    d_output: Float[Array, "B H N E"],
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    position: Float[Array, "H M D"],
    u: Float[Array, "H D"],
    v: Float[Array, "H D"],
    visible: Visible = None,
) -> tuple[Array, ...]:
    """
    See :func:`spec.relative.transformer_xl_attention_grad`.

    The score's gradient is written once through a skewed view, from where position and query take
    theirs by matrix products.
    """
    return attend_transformer_xl_grad(d_output, query, key, value, position, u, v, visible)


def attend_transformer_xl_grad(
    d_output: Float[Array, "B H N E"],
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    position: Float[Array, "H M D"],
    u: Float[Array, "H D"],
    v: Float[Array, "H D"],
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Array, ...]:
    """The gradients of :func:`attend_transformer_xl` with the draw of a dropout."""
    inputs = query, key, value, position, u, v
    size = check_xl_attention(ARRAYS, inputs[:3], inputs[3:], visible, keep, p)
    check(ARRAYS, D_HEADS, d_output, **size)
    d_output, query, key, value, position, u, v = wide(d_output, *inputs)
    score = transformer_xl_causal_score(query, key, position, u, v, visible)
    d_score, d_content, d_key, d_value = heads_grad(
        d_output, query + u[:, None], key, value, score, keep, p
    )
    d_distance, d_position, _ = table_grad(
        d_score / math.sqrt(size["D"]), query + v[:, None], position
    )
    grads = (
        d_content + d_distance,
        d_key,
        d_value,
        d_position,
        d_content.sum(axis=(0, 2)),
        d_distance.sum(axis=(0, 2)),
    )
    return tuple(narrow(d_x, x.dtype) for d_x, x in zip(grads, inputs, strict=True))


@ieee
def learned_relative_score(
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    key_pos_embeddings: Float[Array, "2P H D"],
    key_pos_bias: Float[Array, "2P H"],
    query_pos_bias: Float[Array, "H D"],
    align: str,
) -> Float[Array, "B H N M"]:
    """
    See :func:`spec.relative.learned_relative_score`.

    Only the N + M - 1 rows of the tables that a pair can read take part; they are not gathered for
    each pair.
    """
    tables = key_pos_embeddings, key_pos_bias, query_pos_bias
    size, dtype = check_learned(ARRAYS, query, key, tables, align), query.dtype
    rows = table_rows(size, align)
    wides = wide(query, key, key_pos_embeddings[rows], key_pos_bias[rows], query_pos_bias)
    return narrow(learned_score(*wides), dtype)


def table_rows(size: dict[str, int], align: str) -> slice:
    """The rows of the tables from the farthest past that a pair reads to the farthest future."""
    N, M, P = size["N"], size["M"], size["P"]
    first = P + 1 - (M if align == "end" else N)
    return slice(first, first + N + M - 1)


@ieee
def learned_relative_score_grad(
    d_output: Float[Array, "B H N M"],
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    key_pos_embeddings: Float[Array, "2P H D"],
    key_pos_bias: Float[Array, "2P H"],
    query_pos_bias: Float[Array, "H D"],
    align: str,
) -> tuple[Array, ...]:
    """
    See :func:`spec.relative.learned_relative_score_grad`.

    The scaled gradient is written once through a skewed view, from where the tables take theirs by
    matrix products.
    """
    inputs = query, key, key_pos_embeddings, key_pos_bias, query_pos_bias
    size = check_learned(ARRAYS, query, key, inputs[2:], align)
    check(ARRAYS, D_PRODUCTS, d_output, **size)
    rows = table_rows(size, align)
    d_output, query, key, embeddings, query_bias = wide(
        d_output, query, key, key_pos_embeddings[rows], query_pos_bias
    )
    g = d_output / math.sqrt(size["D"])
    d_x, d_content = unskewed(g), g @ key
    d_embeddings = (d_x.mT @ query).sum(axis=0).swapaxes(0, 1)
    grads = (
        d_content + d_x @ embeddings.swapaxes(0, 1),
        g.mT @ (query + query_bias[:, None]),
        in_table(d_embeddings, rows, key_pos_embeddings),
        in_table(d_x.sum(axis=(0, 2)).T, rows, key_pos_bias),
        d_content.sum(axis=(0, 2)),
    )
    return tuple(narrow(d_x, x.dtype) for d_x, x in zip(grads, inputs, strict=True))


def learned_score(
    query: Array, key: Array, embeddings: Array, bias: Array, query_bias: Array
) -> Float[Array, "B H N M"]:
    return skewed_score(
        query + query_bias[:, None], key, query, embeddings.swapaxes(0, 1), bias.T[:, None]
    )


@ieee
def learned_relative_attention(
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    key_pos_embeddings: Float[Array, "2P H D"],
    key_pos_bias: Float[Array, "2P H"],
    query_pos_bias: Float[Array, "H D"],
    align: str,
    visible: Visible = None,
) -> Float[Array, "B H N E"]:
    """
    See :func:`spec.relative.learned_relative_attention`.

    The position score is read through a skewed view, as in :func:`learned_relative_score`.
    """
    return attend_learned_relative(
        query, key, value, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible
    )


def attend_learned_relative(
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    key_pos_embeddings: Float[Array, "2P H D"],
    key_pos_bias: Float[Array, "2P H"],
    query_pos_bias: Float[Array, "H D"],
    align: str,
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Array, "B H N E"]:
    """:func:`learned_relative_attention` with the draw of a dropout on the weights."""
    given = key_pos_embeddings, key_pos_bias, query_pos_bias
    size = check_learned_attention(ARRAYS, (query, key, value), given, align, visible, keep, p)
    rows, dtype = table_rows(size, align), query.dtype
    query, key, value, *tables = wide(
        query, key, value, key_pos_embeddings[rows], key_pos_bias[rows], query_pos_bias
    )
    score = hide(learned_score(query, key, *tables), visible)
    return narrow(attend(score, value, keep, p), dtype)


@ieee
def learned_relative_attention_grad(
    d_output: Float[Array, "B H N E"],
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    key_pos_embeddings: Float[Array, "2P H D"],
    key_pos_bias: Float[Array, "2P H"],
    query_pos_bias: Float[Array, "H D"],
    align: str,
    visible: Visible = None,
) -> tuple[Array, ...]:
    """
    See :func:`spec.relative.learned_relative_attention_grad`.

    As :func:`transformer_xl_attention_grad`; no atomic addition, since the skew makes every table
    row a column.
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
    d_output: Float[Array, "B H N E"],
    query: Float[Array, "B H N D"],
    key: Float[Array, "B H M D"],
    value: Float[Array, "B H M E"],
    key_pos_embeddings: Float[Array, "2P H D"],
    key_pos_bias: Float[Array, "2P H"],
    query_pos_bias: Float[Array, "H D"],
    align: str,
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Array, ...]:
    """The gradients of :func:`attend_learned_relative` with the draw of a dropout."""
    inputs = query, key, value, key_pos_embeddings, key_pos_bias, query_pos_bias
    size = check_learned_attention(ARRAYS, inputs[:3], inputs[3:], align, visible, keep, p)
    check(ARRAYS, D_HEADS, d_output, **size)
    rows = table_rows(size, align)
    tables = key_pos_embeddings[rows], key_pos_bias[rows], query_pos_bias
    d_output, query, key, value, embeddings, bias, query_bias = wide(
        d_output, query, key, value, *tables
    )
    score = hide(learned_score(query, key, embeddings, bias, query_bias), visible)
    d_score, d_content, d_key, d_value = heads_grad(
        d_output, query + query_bias[:, None], key, value, score, keep, p
    )
    g = d_score / math.sqrt(size["D"])
    d_distance, d_embeddings, d_x = table_grad(g, query, embeddings.swapaxes(0, 1))
    d_embeddings = in_table(d_embeddings.swapaxes(0, 1), rows, key_pos_embeddings)
    d_bias = in_table(d_x.sum(axis=(0, 2)).T, rows, key_pos_bias)
    grads = d_content + d_distance, d_key, d_value, d_embeddings, d_bias, d_content.sum(axis=(0, 2))
    return tuple(narrow(d_x, x.dtype) for d_x, x in zip(grads, inputs, strict=True))


def in_table(d_rows: Array, rows: slice, table: Array) -> Array:
    """The gradient by a whole table: 0 but in the rows that a pair can read."""
    d_table = cupy.get_array_module(table).zeros(table.shape, d_rows.dtype)
    d_table[rows] = d_rows
    return d_table
