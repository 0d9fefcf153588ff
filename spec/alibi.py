"""
ALiBi: no positions at all, but a penalty on the score that grows with the distance, at another rate
for every head.
"""

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from attnverify.contract.arguments import check_integer
from attnverify.contract.attention import D_HEADS, check_visible_heads
from attnverify.contract.masks import check_visible
from attnverify.contract.shapes import check

from .arrays import ARRAYS
from .attention import attend, attend_grad, masked, products_grad
from .relative import Visible, causal_and
from .scores import scaled_dot_product_score

__all__ = ["alibi_attention", "alibi_attention_grad", "get_alibi_biases", "get_slopes"]


def get_slopes(n_heads: int) -> Float[ndarray, "H"]:
    r"""
    One slope per head, a geometric sequence from :math:`2^{-8/n}` downwards.

    .. math:: m_h = 2^{-8 (h+1) / n}, \quad 0 \le h < n, \qquad m_h = 2^{-4 (2 (h - n) + 1) / n},
              \quad n \le h < H

    1. n is the largest power of two that is not above H. A head count that is no power of two takes
       the n slopes of n heads, then every other slope of 2n heads: those that are not in the list
       yet.
    2. The slopes therefore need not fall monotonically.

    >>> get_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    >>> get_slopes(3).tolist()
    [0.0625, 0.00390625, 0.25]

    Source: Press et al. 2022, section 3 and the authors' code; labml-nn, ``transformers/alibi``;
    its page (seed 004).

    Erratum: labml's ALiBi page (seed 004) speaks of the closest power of two, which for 7 heads
    were 8; its code takes 4, as its next sentence says.
    """
    check_integer(ARRAYS, "n_heads", n_heads)
    n = 2 ** (int(n_heads).bit_length() - 1)
    first = [2 ** (-8 * (h + 1) / n) for h in range(n)]
    others = [2 ** (-4 * (2 * h + 1) / n) for h in range(n_heads - n)]
    return np.array(first + others)


def get_alibi_biases(n_heads: int, visible: Bool[ndarray, "N M"]) -> Float[ndarray, "H N M"]:
    r"""
    A bias for every pair: the head's slope times the number of keys that the row has seen so far.

    .. math:: b_{hij} = m_h \sum_{j' \le j} \text{visible}_{ij'}

    1. It never falls with j and grows at every visible key, so that near keys get the larger bias.
       For a row of the causal mask its visible keys have :math:`m_h (j - (M - N + i))` up to a
       constant per row, which the softmax does not see.
    2. The count is of *visible* keys: a hidden key in between brings those before it nearer, and
       without a causal mask it grows behind the query too. :func:`alibi_attention` counts positions
       instead.

    >>> get_alibi_biases(
    ...     2, np.array([[True, False, False], [True, True, False], [True, False, True]])
    ... )[0].tolist()
    [[0.0625, 0.0625, 0.0625], [0.0625, 0.125, 0.125], [0.0625, 0.0625, 0.125]]

    Source: labml-nn, ``transformers/alibi``; its page (seed 004).

    Erratum: a comment on labml's ALiBi page (seed 004) takes ``arange`` for the distance, since the
    mask is causal; its code counts visible keys, another bias under any mask that is not purely
    causal.
    """
    check_visible(ARRAYS, visible)
    return get_slopes(n_heads)[:, None, None] * np.cumsum(visible, axis=-1)


def alibi_attention(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    visible: Visible = None,
) -> Float[ndarray, "B H N E"]:
    r"""
    Attention by the scaled inner product with a linear penalty on the distance, always causal.

    .. math:: o_{ie} = \sum_{j \text{ visible}} \text{softmax}(s)_{ij}\, v_{je}, \qquad
              s_{ij} = \frac{1}{\sqrt D} \sum_d q_{id} k_{jd} + m_h \big(j - (M - N + i)\big)

    1. The bias is 0 on the diagonal and negative before it; it is added after the scale.
    2. The query stands at the end of the keys: its position is M - N + i.
    3. ``visible`` hides further keys and moves none: a hidden key still counts as a position.
    4. With N > M the first N - M queries see no key and give 0.

    >>> query, key, value = (
    ...     np.zeros((1, 1, 1, 1)),
    ...     np.zeros((1, 1, 2, 1)),
    ...     np.array([[[[1.0], [0.0]]]]),
    ... )
    >>> weight = alibi_attention(
    ...     query, key, value
    ... ).item()  # of the key at distance 1, against that at distance 0
    >>> get_slopes(1).item(), np.log((1 - weight) / weight).round(9).item()
    (0.00390625, 0.00390625)

    Source: Press et al. 2022, section 3; labml's ALiBi page (seed 004).

    Errata: labml's ALiBi page (seed 004) caches the biases of the first mask it meets for every
    later mask that is not longer. Its text asks for a causal mask because its biases count visible
    keys (:func:`get_alibi_biases`, clause 2).
    """
    check_visible_heads(ARRAYS, query, key, value, visible)
    return attend(alibi_score(query, key), value, causal_and(visible, query, key))


def alibi_score(query: ndarray, key: ndarray) -> Float[ndarray, "B H N M"]:
    H, N, M = query.shape[1], query.shape[2], key.shape[2]
    i, j = np.arange(N)[:, None], np.arange(M)[None, :]
    return scaled_dot_product_score(query, key) + get_slopes(H)[:, None, None] * (j - (M - N + i))


def alibi_attention_grad(
    d_output: Float[ndarray, "B H N E"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    visible: Visible = None,
) -> tuple[Float[ndarray, "B H N D"], Float[ndarray, "B H M D"], Float[ndarray, "B H M E"]]:
    r"""
    The gradients of :func:`alibi_attention` by query, key and value.

    They are those of :func:`attnverify.spec.attention.scaled_dot_product_attention_grad` under the
    weights of this attention:

    .. math:: \bar q_{id} = \frac{1}{\sqrt D} \sum_{j \text{ visible}} \bar s_{ij} k_{jd}, \qquad
              \bar k_{jd} = \frac{1}{\sqrt D} \sum_{i \text{ sees } j} \bar s_{ij} q_{id}

    1. The bias is a constant: the slopes are not learned.

    >>> query, key, value = (
    ...     np.zeros((1, 1, 1, 1)),
    ...     np.zeros((1, 1, 1, 1)),
    ...     np.array([[[[2.0]]]]),
    ... )
    >>> [x.item() for x in alibi_attention_grad(np.ones((1, 1, 1, 1)), query, key, value)]
    [0.0, 0.0, 1.0]
    """
    check(ARRAYS, D_HEADS, d_output, **check_visible_heads(ARRAYS, query, key, value, visible))
    score = alibi_score(query, key)
    _, seen = masked(score, causal_and(visible, query, key))
    d_score, d_value = attend_grad(d_output, score, value, seen)
    d_query, d_key = products_grad(d_score / np.sqrt(query.shape[-1]), seen, query, key)
    return d_query, d_key, d_value
