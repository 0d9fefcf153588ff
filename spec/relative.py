"""
Relative positions: scores that know how far apart a query and a key are, by a sinusoid or by a
learned table.
"""

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
from .attention import Keep, attend, attend_grad, masked, products_grad, scores_shape
from .domains import Align
from .masks import causal_mask
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


def sinusoidal_positions(M: int, F: int) -> Float[ndarray, "M F"]:
    r"""
    A row of sines and cosines for each of the distances M - 1 ... 0.

    .. math:: r_{c,f} = \sin\frac{M-1-c}{10000^{2f/F}}, \qquad r_{c,F/2+f} =
              \cos\frac{M-1-c}{10000^{2f/F}}, \qquad 0 \le f < F/2

    1. The farthest distance comes first: row c stands for the distance M - 1 - c, and the last row
       for 0.
    2. All sines come before all cosines; they do not alternate. An odd width F is refused.

    >>> sinusoidal_positions(2, 4).round(2)
    array([[0.84, 0.01, 0.54, 1.  ],
           [0.  , 0.  , 1.  , 1.  ]])

    Source: Dai et al. 2019; ``PositionalEmbedding`` of kimiyoung/transformer-xl.
    """
    check_sizes(ARRAYS, M=M, F=F)
    check_even(F)
    distance = np.arange(M - 1, -1, -1)[:, None]
    frequency = 10000.0 ** (-2 * np.arange(F // 2) / F)
    return np.concatenate([np.sin(distance * frequency), np.cos(distance * frequency)], axis=-1)


def transformer_xl_score(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    position: Float[ndarray, "H M D"],
    u: Float[ndarray, "H D"],
    v: Float[ndarray, "H D"],
) -> Float[ndarray, "B H N M"]:
    r"""
    A content score and a position score, each with a bias of its own on the query.

    .. math:: s_{ij} = \frac{1}{\sqrt D} \Big( \sum_d (q_{id} + u_d)\, k_{jd} +
              \text{rel\_shift}(x)_{ij} \Big), \qquad
              x_{ic} = \sum_d (q_{id} + v_d)\, r_{cd}

    1. ``position`` row c stands for the distance M - 1 - c, as :func:`sinusoidal_positions` orders
       them.
    2. For j <= M - N + i the shift brings the distance M - N + i - j to key j: the query stands at
       the end of the keys, memory in front.
    3. Beyond, :func:`attnverify.spec.shifts.rel_shift` wraps around to the numbers of other
       queries: the next one's, and with N > M + 1 those behind it; the attention hides these pairs.
    4. u belongs to the content, v to the position. The scale is on the sum of both.

    >>> query = key = np.zeros((1, 1, 2, 1))
    >>> position, u, v = np.array([[[10.0], [20.0]]]), np.array([[5.0]]), np.array([[1.0]])
    >>> transformer_xl_score(query, key, position, u, v)[0, 0]
    array([[20.,  0.],
           [10., 20.]])

    Six queries, two keys, and the place of the query in front of its row: row 0 shows what query 2
    has at the greatest distance.

    >>> query, key = np.arange(6.0).reshape(1, 1, 6, 1), np.zeros((1, 1, 2, 1))
    >>> position, none = np.array([[[1.0], [10.0]]]), np.zeros((1, 1))
    >>> transformer_xl_score(query, key, position, none, none)[0, 0, 0]
    array([0., 2.])

    Source: Dai et al. 2019, section 3.3; ``RelPartialLearnableMultiHeadAttn`` of
    kimiyoung/transformer-xl (seed 003).

    Erratum: comments of a tutorial for TensorFlow 2 (seed 003) give u and v the shape of w, a bias
    for each position and batch entry; then equal queries and keys score by their place. The paper's
    u and v are one vector for each head.
    """
    check_transformer_xl(ARRAYS, query, key, position, u, v)
    D = query.shape[-1]
    content = np.einsum("bhnd,bhmd->bhnm", query + u[:, None, :], key)
    distance = rel_shift(np.einsum("bhnd,hmd->bhnm", query + v[:, None, :], position))
    return (content + distance) / np.sqrt(D)


def transformer_xl_score_grad(
    d_output: Float[ndarray, "B H N M"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    position: Float[ndarray, "H M D"],
    u: Float[ndarray, "H D"],
    v: Float[ndarray, "H D"],
) -> tuple[ndarray, ...]:
    r"""
    The gradients of :func:`transformer_xl_score` by query, key, position, u and v.

    With :math:`g_{ij} = \bar s_{ij} / \sqrt D` and its way back through the shift, :math:`h =
    \text{rel\_shift\_grad}(g)`,

    .. math:: \bar q_i = \sum_j g_{ij} k_j + \sum_c h_{ic} r_c, \qquad \bar k_j = \sum_i g_{ij}
              (q_i + u), \qquad \bar r_c = \sum_{bi} h_{ic} (q_i + v), \qquad
              \bar u = \sum_{bij} g_{ij} k_j, \qquad \bar v = \sum_{bic} h_{ic} r_c

    1. All pairs take part, those that wrap around too: nothing is hidden in a score.

    >>> query, key, zero = np.ones((1, 1, 1, 1)), np.ones((1, 1, 2, 1)), np.zeros((1, 1))
    >>> grads = transformer_xl_score_grad(
    ...     np.array([[[[1.0, 3.0]]]]), query, key, np.zeros((1, 2, 1)), zero, zero
    ... )
    >>> grads[0].item(), grads[1].ravel().tolist(), grads[2].ravel().tolist()
    (4.0, [1.0, 3.0], [1.0, 3.0])

    Source: Dai et al. 2019, section 3.3, by the chain rule.
    """
    check(ARRAYS, D_PRODUCTS, d_output, **check_transformer_xl(ARRAYS, query, key, position, u, v))
    g = d_output / np.sqrt(query.shape[-1])
    (h,) = rel_shift_grad(g, g)
    d_content = np.einsum("bhnm,bhmd->bhnd", g, key)
    d_distance = np.einsum("bhnm,hmd->bhnd", h, position)
    d_key = np.einsum("bhnm,bhnd->bhmd", g, query + u[:, None, :])
    d_position = np.einsum("bhnm,bhnd->hmd", h, query + v[:, None, :])
    d_u, d_v = d_content.sum((0, 2)), d_distance.sum((0, 2))
    return d_content + d_distance, d_key, d_position, d_u, d_v


def transformer_xl_attention(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    position: Float[ndarray, "H M D"],
    u: Float[ndarray, "H D"],
    v: Float[ndarray, "H D"],
    visible: Visible = None,
) -> Float[ndarray, "B H N E"]:
    r"""
    Attention by the Transformer-XL score, always causal.

    .. math:: o_{ie} = \sum_{j \text{ visible}} \text{softmax}(s)_{ij}\, v_{je}, \qquad s =
              \text{transformer\_xl\_score}(q, k, r, u, v)

    1. A key is seen if the end-aligned causal mask shows it and ``visible``, where it is given,
       does not hide it.
    2. With N > M the first N - M queries see no key and give 0.

    >>> query = key = np.zeros((1, 1, 2, 1))
    >>> position, zero = np.array([[[0.0], [np.log(3.0)]]]), np.zeros((1, 1))
    >>> value = np.array([[[[4.0], [8.0]]]])
    >>> transformer_xl_attention(query, key, value, position, zero, zero + 1)[0, 0].round(9)
    array([[4.],
           [7.]])

    Source: Dai et al. 2019, section 3.3 (seed 003).
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
    score = transformer_xl_score(query, key, position, u, v)
    return attend(score, value, causal_and(visible, query, key), keep, p)


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
    r"""
    The gradients of :func:`transformer_xl_attention` by query, key, value, position, u and v.

    With :math:`g_{ij} = \bar s_{ij} / \sqrt D` and the row :math:`c = N - 1 - i + j` that the pair
    (i, j) reads,

    .. math:: \bar q_i = \sum_j g_{ij} (k_j + r_c), \qquad \bar k_j = \sum_i g_{ij} (q_i + u),
              \qquad
              \bar r_c = \sum_{bij \to c} g_{ij} (q_i + v), \qquad \bar u = \sum_{bij} g_{ij} k_j,
              \qquad \bar v = \sum_{bij} g_{ij} r_c

    1. The sums run over the visible pairs; a row of ``position`` that none of them reads gets
       exactly 0.
    2. ``position``, u and v are shared by the batch: their gradients are summed over it.

    >>> query = key = np.zeros((1, 1, 2, 1))
    >>> position, u, v, value = (
    ...     np.zeros((1, 2, 1)),
    ...     np.zeros((1, 1)),
    ...     np.ones((1, 1)),
    ...     np.array([[[[2.0], [4.0]]]]),
    ... )
    >>> d_position = transformer_xl_attention_grad(
    ...     np.ones((1, 1, 2, 1)), query, key, value, position, u, v
    ... )[3]
    >>> d_position.ravel().tolist()
    [-0.5, 0.5]
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
    score = transformer_xl_score(query, key, position, u, v)
    _, seen = masked(score, causal_and(visible, query, key))
    d_score, d_value = attend_grad(d_output, score, value, seen, keep, p)
    N, D = query.shape[-2:]
    g = d_score / np.sqrt(D)
    d_content, d_key = products_grad(g, seen, query + u[:, None, :], key)
    d_distance, d_position = np.zeros_like(query), np.zeros_like(position)
    for b, h, i, j in np.argwhere(seen):
        c = N - 1 - i + j
        d_distance[b, h, i] += g[b, h, i, j] * position[h, c]
        d_position[h, c] += g[b, h, i, j] * (query[b, h, i] + v[h])
    return (
        d_content + d_distance,
        d_key,
        d_value,
        d_position,
        d_content.sum((0, 2)),
        d_distance.sum((0, 2)),
    )


def learned_relative_score(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    key_pos_embeddings: Float[ndarray, "2P H D"],
    key_pos_bias: Float[ndarray, "2P H"],
    query_pos_bias: Float[ndarray, "H D"],
    align: Align,
) -> Float[ndarray, "B H N M"]:
    r"""
    A content score and a position score whose positions are learned, one row for each offset from
    -P to P - 1.

    .. math:: s_{ij} = \frac{1}{\sqrt D} \Big( \sum_d (q_{id} + b_d)\, k_{jd} + \sum_d q_{id}\,
              R_{td} + S_t \Big), \qquad
              t = \begin{cases} P + (j - i) - (M - N) & \text{align = "end"} \\ P + (j - i) &
              \text{align = "start"} \end{cases}

    1. R is ``key_pos_embeddings``, S ``key_pos_bias``, b ``query_pos_bias``. Only the content score
       has the query's bias.
    2. ``align="end"`` aligns the last query with the last key: right with a memory in front.
       ``align="start"`` aligns the first ones. With N = M the two agree.
    3. Row P stands for "same position", rows below it for keys in the past, rows above it for keys
       in the future.
    4. N or M beyond P is refused. Nothing is clamped and nothing wraps around.
    5. The scale is on the sum, the position terms included.

    >>> query, key, zero = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 2, 1)), np.zeros((1, 1))
    >>> key_pos_bias = np.array([[-20.0], [-10.0], [0.0], [10.0]])
    >>> learned_relative_score(
    ...     query, key, np.zeros((4, 1, 1)), key_pos_bias, zero, align="end"
    ... ).ravel().tolist()
    [-10.0, 0.0]
    >>> learned_relative_score(
    ...     query, key, np.zeros((4, 1, 1)), key_pos_bias, zero, align="start"
    ... ).ravel().tolist()
    [0.0, 10.0]

    Source: labml-nn, ``transformers/xl/relative_mha.py``; its Chinese and English pages (seeds 000
    and 002).

    Errata: two pages of labml's show one module and slice its tables differently: labml's Chinese
    page (seed 000) at ``[P - M : P + N]`` (aligned at the end), labml's English page (seed 002) at
    ``[P - N : P + M]`` (aligned at the start). Beyond P = 4096 both slices are cut: where the end
    lies beyond the table (Chinese: N > P, English: M > P) every pair in silence reads the row of an
    earlier offset; where the beginning lies before it (Chinese: M > P, English: N > P) it counts
    from the table's end: few rows or none are left, which is broadcast in silence or raises.
    """
    t = table_rows(query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align)
    (B, H, N, D), M = query.shape, key.shape[2]
    content = np.einsum("bhnd,bhmd->bhnm", query + query_pos_bias[:, None, :], key)
    position = np.zeros((B, H, N, M), np.result_type(content, key_pos_embeddings, key_pos_bias))
    for i in range(N):
        for j in range(M):
            position[:, :, i, j] = (
                np.einsum("bhd,hd->bh", query[:, :, i], key_pos_embeddings[t[i, j]])
                + key_pos_bias[t[i, j]]
            )
    return (content + position) / np.sqrt(D)


def learned_relative_score_grad(
    d_output: Float[ndarray, "B H N M"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    key_pos_embeddings: Float[ndarray, "2P H D"],
    key_pos_bias: Float[ndarray, "2P H"],
    query_pos_bias: Float[ndarray, "H D"],
    align: Align,
) -> tuple[ndarray, ...]:
    r"""
    The gradients of :func:`learned_relative_score` by query, key, the two tables and the query's
    bias.

    With :math:`g_{ij} = \bar s_{ij} / \sqrt D` and the row t that the pair (i, j) reads,

    .. math:: \bar q_i = \sum_j g_{ij} (k_j + R_t), \qquad \bar k_j = \sum_i g_{ij} (q_i + b),
              \qquad
              \bar R_t = \sum_{bij \to t} g_{ij} q_i, \qquad \bar S_t = \sum_{bij \to t} g_{ij},
              \qquad \bar b = \sum_{bij} g_{ij} k_j

    1. A row of the tables that no pair reads gets exactly 0.

    >>> query, key = np.ones((1, 1, 1, 1)), np.zeros((1, 1, 2, 1))
    >>> tables = np.zeros((4, 1, 1)), np.zeros((4, 1)), np.zeros((1, 1))
    >>> grads = learned_relative_score_grad(
    ...     np.array([[[[1.0, 3.0]]]]), query, key, *tables, "end"
    ... )
    >>> grads[3].ravel().tolist()
    [0.0, 1.0, 3.0, 0.0]

    Source: labml-nn, ``transformers/xl/relative_mha.py``, by the chain rule.
    """
    t = table_rows(query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align)
    B, H, N, M = (*query.shape[:3], key.shape[2])
    check(ARRAYS, D_PRODUCTS, d_output, B=B, H=H, N=N, M=M)
    g = d_output / np.sqrt(query.shape[-1])
    d_content = np.einsum("bhnm,bhmd->bhnd", g, key)
    d_distance, d_embeddings, d_bias = (
        np.zeros_like(x) for x in (query, key_pos_embeddings, key_pos_bias)
    )
    for b, h, i, j in np.ndindex(g.shape):
        d_distance[b, h, i] += g[b, h, i, j] * key_pos_embeddings[t[i, j], h]
        d_embeddings[t[i, j], h] += g[b, h, i, j] * query[b, h, i]
        d_bias[t[i, j], h] += g[b, h, i, j]
    d_key = np.einsum("bhnm,bhnd->bhmd", g, query + query_pos_bias[:, None, :])
    return d_content + d_distance, d_key, d_embeddings, d_bias, d_content.sum((0, 2))


def learned_relative_attention(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    key_pos_embeddings: Float[ndarray, "2P H D"],
    key_pos_bias: Float[ndarray, "2P H"],
    query_pos_bias: Float[ndarray, "H D"],
    align: Align,
    visible: Visible = None,
) -> Float[ndarray, "B H N E"]:
    r"""
    Attention by the learned relative score.

    .. math:: o_{ie} = \sum_{j \text{ visible}} \text{softmax}(s)_{ij}\, v_{je}

    1. It is not causal: without ``visible`` every row sees every key, on either side.
    2. A row of the tables that only hidden pairs read is absent, as hidden keys are.

    >>> query, key, value = (
    ...     np.zeros((1, 1, 1, 1)),
    ...     np.zeros((1, 1, 2, 1)),
    ...     np.array([[[[4.0], [8.0]]]]),
    ... )
    >>> key_pos_bias = np.array([[0.0], [0.0], [np.log(3.0)], [0.0]])
    >>> learned_relative_attention(
    ...     query, key, value, np.zeros((4, 1, 1)), key_pos_bias, np.zeros((1, 1)), "end"
    ... ).round(9).item()
    7.0

    Source: labml-nn, ``transformers/xl/relative_mha.py``; its Chinese and English pages (seeds 000
    and 002).
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
    align: Align,
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[ndarray, "B H N E"]:
    """:func:`learned_relative_attention` with the draw of a dropout on the weights."""
    check_visible_heads(ARRAYS, query, key, value, visible, keep, p)
    score = learned_relative_score(
        query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align
    )
    return attend(score, value, visible, keep, p)


def learned_relative_attention_grad(
    d_output: Float[ndarray, "B H N E"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    key_pos_embeddings: Float[ndarray, "2P H D"],
    key_pos_bias: Float[ndarray, "2P H"],
    query_pos_bias: Float[ndarray, "H D"],
    align: Align,
    visible: Visible = None,
) -> tuple[ndarray, ...]:
    r"""
    The gradients of :func:`learned_relative_attention` by query, key, value, the two tables and the
    query's bias.

    With :math:`g_{ij} = \bar s_{ij} / \sqrt D` and the row t that the pair (i, j) reads,

    .. math:: \bar q_i = \sum_j g_{ij} (k_j + R_t), \qquad \bar k_j = \sum_i g_{ij} (q_i + b),
              \qquad
              \bar R_t = \sum_{bij \to t} g_{ij} q_i, \qquad \bar S_t = \sum_{bij \to t} g_{ij},
              \qquad \bar b = \sum_{bij} g_{ij} k_j

    1. The sums run over the visible pairs; a row of the tables that none of them reads gets exactly
       0.

    >>> query, key, value = (
    ...     np.ones((1, 1, 1, 1)),
    ...     np.zeros((1, 1, 2, 1)),
    ...     np.array([[[[2.0], [4.0]]]]),
    ... )
    >>> tables = np.zeros((4, 1, 1)), np.zeros((4, 1)), np.zeros((1, 1))
    >>> grads = learned_relative_attention_grad(
    ...     np.ones((1, 1, 1, 1)), query, key, value, *tables, "end"
    ... )
    >>> grads[4].ravel().tolist()
    [0.0, -0.5, 0.5, 0.0]
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
    align: Align,
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
    _, seen = masked(score, visible)
    t = table_rows(query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align)
    d_score, d_value = attend_grad(d_output, score, value, visible, keep, p)
    g = d_score / np.sqrt(query.shape[-1])
    d_content, d_key = products_grad(g, seen, query + query_pos_bias[:, None, :], key)
    d_distance, d_embeddings, d_bias = (
        np.zeros_like(x) for x in (query, key_pos_embeddings, key_pos_bias)
    )
    for b, h, i, j in np.argwhere(seen):
        d_distance[b, h, i] += g[b, h, i, j] * key_pos_embeddings[t[i, j], h]
        d_embeddings[t[i, j], h] += g[b, h, i, j] * query[b, h, i]
        d_bias[t[i, j], h] += g[b, h, i, j]
    return d_content + d_distance, d_key, d_value, d_embeddings, d_bias, d_content.sum((0, 2))


def causal_and(visible: Visible, query: ndarray, key: ndarray) -> Bool[ndarray, "B H N M"]:
    """What a causal row sees: no key behind it, and none that ``visible`` hides."""
    shape = scores_shape(query, key)
    return np.broadcast_to(causal_mask(*shape[-2:]) & (True if visible is None else visible), shape)


def table_rows(
    query: Any,
    key: Any,
    key_pos_embeddings: Any,
    key_pos_bias: Any,
    query_pos_bias: Any,
    align: Any,
) -> ndarray:
    """The row t [N M] of the tables that each pair reads."""
    tables = key_pos_embeddings, key_pos_bias, query_pos_bias
    at = check_learned(ARRAYS, query, key, tables, align)
    N, M, P = at["N"], at["M"], at["P"]
    i, j = np.arange(N)[:, None], np.arange(M)[None, :]
    return P + (j - i) - (M - N if align == "end" else 0)
