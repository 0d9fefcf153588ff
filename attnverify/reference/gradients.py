"""
The gradients of the attentions in stages, like :mod:`attnverify.reference.attention`: weights
recomputed, value, weights, score, products.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.reference.attention import (
    additive_score,
    alibi_score,
    behind,
    causal_mask,
    drop,
    get_slopes,
    inverse_root,
    learned_relative_score,
    mix,
    see,
    table_rows,
    transformer_xl_score,
    weigh,
)

Grads = tuple[ndarray, ...]


def row_mean(weights: ndarray, d_weights: ndarray) -> ndarray:
    """
    Compute what the softmax takes off every weight's gradient, so that no constant of a row passes.
    """
    return np.where(weights == 0, 0, weights * d_weights).sum(axis=-1, keepdims=True)


def value_grad(weights: ndarray, visible: ndarray, d_output: ndarray) -> ndarray:
    return mix(weights.mT, visible.mT, d_output)


def score_grad(weights: ndarray, visible: ndarray, d_weights: ndarray, mean: ndarray) -> ndarray:
    return np.where(visible, weights * (d_weights - mean), 0)


def attend_grad(
    d_output: ndarray,
    score: ndarray,
    visible: ndarray,
    value: ndarray,
    keep: Any = None,
    p: float = 0.0,
    weigh: Any = weigh,
    drop: Any = drop,
    drop_back: Any = drop,
    row_mean: Any = row_mean,
    value_grad: Any = value_grad,
    score_grad: Any = score_grad,
) -> tuple[ndarray, ndarray]:
    """Compute the gradients of :func:`attnverify.reference.attention.attend` by score and value."""
    weights = weigh(score, visible)
    d_value = value_grad(drop(weights, keep, p), visible, d_output)
    d_weights = drop_back(d_output @ value.mT, keep, p)
    return score_grad(weights, visible, d_weights, row_mean(weights, d_weights)), d_value


def query_grad(d_products: ndarray, visible: ndarray, key: ndarray) -> ndarray:
    return mix(d_products, visible, key)


def key_grad(d_products: ndarray, visible: ndarray, query: ndarray) -> ndarray:
    return mix(d_products.mT, visible.mT, query)


def mask_grad(d_score: ndarray, mask: Any) -> Grads:
    """By a float mask: summed over the axes along which it was broadcast."""
    if mask is None or mask.dtype == bool:
        return ()
    full = (1,) * (d_score.ndim - mask.ndim) + mask.shape
    axes = tuple(axis for axis, size in enumerate(full) if size == 1)
    return (d_score.sum(axis=axes, keepdims=True).reshape(mask.shape),)


def scaled_dot_product_attention_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    mask: Any = None,
    keep: Any = None,
    p: float = 0.0,
    see: Any = see,
    query_grad: Any = query_grad,
    key_grad: Any = key_grad,
    mask_grad: Any = mask_grad,
    scale: Any = inverse_root,
    **stages: Any,
) -> Grads:
    score, visible = see(query @ key.mT * inverse_root(query.shape[-1]), mask)
    d_score, d_value = attend_grad(d_output, score, visible, value, keep, p, **stages)
    d = d_score * scale(query.shape[-1])
    return (
        query_grad(d, visible, key),
        key_grad(d, visible, query),
        d_value,
        *mask_grad(d_score, mask),
    )


def alibi_attention_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    visible: Any = None,
    causal: Any = causal_mask,
    slopes: Any = get_slopes,
    query_grad: Any = query_grad,
    key_grad: Any = key_grad,
    scale: Any = inverse_root,
    **stages: Any,
) -> Grads:
    score = alibi_score(query, key, slopes)
    sees = behind(score, visible, causal)
    d_score, d_value = attend_grad(d_output, score, sees, value, **stages)
    d = d_score * scale(query.shape[-1])
    return query_grad(d, sees, key), key_grad(d, sees, query), d_value


def transformer_xl_attention_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    position: Any,
    u: Any,
    v: Any,
    visible: Any = None,
    causal: Any = causal_mask,
    by_row: Any = None,
    **stages: Any,
) -> Grads:
    score = transformer_xl_score(query, key, position, u, v)
    sees = behind(score, visible, causal)
    d_score, d_value = attend_grad(d_output, score, sees, value, **stages)
    d = d_score * inverse_root(query.shape[-1])
    d_content, d_key = query_grad(d, sees, key), key_grad(d, sees, query + u[:, None])
    d_rows, read = (by_row or shift_back)(d, sees)
    d_far, d_position = table_grad(d_rows, read, query + v[:, None], position)
    return d_content + d_far, d_key, d_value, d_position, d_content.sum((0, 2)), d_far.sum((0, 2))


def table_grad(
    d_rows: ndarray, read: ndarray, query: ndarray, table: ndarray
) -> tuple[ndarray, ndarray]:
    """By the query and by a table [H R D], of what arrives at the rows that a query reads."""
    d_query = query_grad(d_rows, read, np.broadcast_to(table, (len(query), *table.shape)))
    return d_query, key_grad(d_rows, read, query).sum(0)


def shift_back(d: ndarray, sees: ndarray) -> tuple[ndarray, ndarray]:
    """
    Compute what arrives at the rows of ``position``: row N - 1 - i + j for the pair (i, j), and
    which rows a query reads.
    """
    N, M = d.shape[-2:]
    row = np.arange(M) + N - 1 - np.arange(N)[:, None]
    i, j = np.nonzero(row < M)  # causal pairs never read beyond the last row
    d_rows, read = np.zeros(d.shape), np.zeros(d.shape, bool)
    d_rows[..., i, row[i, j]], read[..., i, row[i, j]] = d[..., i, j], sees[..., i, j]
    return d_rows, read


def learned_relative_attention_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    key_pos_embeddings: Any,
    key_pos_bias: Any,
    query_pos_bias: Any,
    align: str,
    visible: Any = None,
    gather: Any = None,
    bias_scale: float = 1.0,
    **stages: Any,
) -> Grads:
    score = learned_relative_score(
        query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align
    )
    _, sees = see(score, None if visible is None else np.broadcast_to(visible, score.shape))
    d_score, d_value = attend_grad(d_output, score, sees, value, **stages)
    d = d_score * inverse_root(query.shape[-1])
    d_content, d_key = query_grad(d, sees, key), key_grad(d, sees, query + query_pos_bias[:, None])
    t = table_rows(query.shape[2], key.shape[2], len(key_pos_bias) // 2, align)
    d_rows, read = (gather or onto_rows)(d, sees, t, len(key_pos_bias))
    d_far, d_table = table_grad(d_rows, read, query, key_pos_embeddings.swapaxes(0, 1))
    return (
        d_content + d_far,
        d_key,
        d_value,
        d_table.swapaxes(0, 1),
        bias_scale * d_rows.sum((0, 2)).T,
        d_content.sum((0, 2)),
    )


def onto_rows(d: ndarray, sees: ndarray, t: ndarray, rows: int) -> tuple[ndarray, ndarray]:
    """
    Compute what arrives at the rows of the tables, [B H N 2P], and which of them a query reads.
    """
    d_rows, read = np.zeros((*d.shape[:3], rows)), np.zeros((*d.shape[:3], rows), bool)
    i = np.arange(len(t))[:, None]
    d_rows[:, :, i, t], read[:, :, i, t] = d, sees
    return d_rows, read


def additive_attention_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    w_query: Any,
    w_key: Any,
    w_score: Any,
    mask: Any = None,
    keep: Any = None,
    p: float = 0.0,
    see: Any = see,
    slope: Any = None,
    mask_grad: Any = mask_grad,
    **stages: Any,
) -> Grads:
    score, visible = see(additive_score(query, key, w_query, w_key, w_score), mask)
    d_score, d_value = attend_grad(d_output, score, visible, value, keep, p, **stages)
    d_query, d_key, *d_weights = additive_score_grad(
        d_score, visible, query, key, w_query, w_key, w_score, slope or tanh_slope
    )
    return d_query, d_key, d_value, *d_weights, *mask_grad(d_score, mask)


def tanh_slope(z: ndarray, t: ndarray) -> ndarray:
    return 1 - t * t


def additive_score_grad(
    d_score: ndarray,
    visible: ndarray,
    query: ndarray,
    key: ndarray,
    w_query: ndarray,
    w_key: ndarray,
    w_score: ndarray,
    slope: Any = tanh_slope,
) -> Grads:
    """By query, key and the three weights, over the pairs that see each other."""
    z = (query @ w_query.T)[..., :, None, :] + (key @ w_key.T)[..., None, :, :]
    pair = visible[..., None]
    t = np.where(pair, np.tanh(z), 0)
    d_z = np.where(pair, d_score[..., None] * w_score * slope(z, t), 0)
    d_q, d_k = d_z.sum(2), d_z.sum(1)
    sees, seen = np.any(visible, -1)[..., None], np.any(visible, -2)[..., None]
    query, key = np.where(sees, query, 0), np.where(seen, key, 0)
    d_query, d_key = np.where(sees, d_q @ w_query, 0), np.where(seen, d_k @ w_key, 0)
    d_w_query, d_w_key = (np.einsum("bna,bnf->af", d, x) for d, x in ((d_q, query), (d_k, key)))
    return d_query, d_key, d_w_query, d_w_key, np.einsum("bnm,bnma->a", d_score, t)
