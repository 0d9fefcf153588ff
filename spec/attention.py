"""
Attention: from scores to weights, and from weights to the mean of the values that they ask for.
"""

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
from .scores import additive_score, scaled_dot_product_score

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


def softmax(score: Float[ndarray, "... N M"], mask: Mask = None) -> Float[ndarray, "... N M"]:
    r"""
    Weights that are positive and sum to one over the keys that a row sees.

    .. math:: w_{ij} = \frac{e^{s_{ij} + \text{mask}_{ij}}}{\sum_{j' \text{ visible}} e^{s_{ij'} +
              \text{mask}_{ij'}}}

    1. A boolean mask is ``visible``: True = may attend. A float mask is added to the score. Either
       broadcasts to the score.
    2. A key is hidden where ``visible`` is False, where the float mask is minus infinity, or where
       the score itself is. Its weight is exactly 0, whatever its score is, NaN included. No finite
       number hides a key.
    3. A row that sees no key has weights 0: neither NaN nor an average.
    4. A finite constant added to a whole row changes nothing, which is why the maximum may be
       subtracted first. Minus infinity hides the row, and a visible score of infinity makes it
       NaN.

    >>> softmax(np.log(np.array([[1.0, 1.0, 2.0]]))).round(2)
    array([[0.25, 0.25, 0.5 ]])
    >>> softmax(
    ...     np.array([[0.0, np.nan, 0.0], [5.0, 6.0, 7.0]]),
    ...     np.array([[True, False, True], [False, False, False]]),
    ... )
    array([[0.5, 0. , 0.5],
           [0. , 0. , 0. ]])
    >>> softmax(np.zeros((1, 2)), np.array([[-np.inf, -1e9]]))
    array([[0., 1.]])
    >>> score = np.array([[0.0, 1.0, np.inf]])
    >>> with np.errstate(invalid="ignore"):
    ...     softmax(score), softmax(score - np.inf, np.isfinite(score))
    (array([[nan, nan, nan]]), array([[0., 0., 0.]]))

    Source: Bridle 1990 (seed 001, sections 2.1 to 2.3); rows without keys: this project's choice,
    and that of PyTorch's attention.

    Errata: a text on attention shows masking as ``masked_fill(mask, 0)`` (seed 001), and a project
    did so (PsyNeuLink PR #3196); before a softmax, 0 is a score like any other and hides nothing. A
    fill with -inf is right but for the rows that lose every key, which turn NaN, and so does the
    gradient by every value (pytorch #103963; an example mask of seed 001 hides a whole row). Adding
    ``mask * 1e-9`` (for -1e9) hides nothing (cyobero/datascience and eight more files; seed 003).
    """
    check_softmax(ARRAYS, score, mask)
    score, visible = masked(score, mask)
    weights = np.zeros_like(score)
    for row in np.ndindex(score.shape[:-1]):
        j = visible[row]
        if j.any():
            e = np.exp(score[row][j] - np.max(score[row][j].real))
            weights[row][j] = e / np.sum(e)
    return weights


def softmax_grad(
    d_output: Float[ndarray, "... N M"], score: Float[ndarray, "... N M"], mask: Mask = None
) -> tuple[ndarray, ...]:
    r"""
    The gradients of :func:`softmax` by the score, and by the mask if it is float.

    .. math:: \bar s_{ij} = w_{ij} \Big(\bar w_{ij} - \sum_{j' \text{ visible}} w_{ij'} \bar
              w_{ij'}\Big)

    1. A hidden key receives exactly 0, and so does a row that sees no key.
    2. What arrives at a hidden weight, which is the constant 0, goes nowhere.
    3. The gradient by a float mask is that of the score, summed over the axes along which the mask
       was broadcast.

    >>> softmax_grad(np.array([[1.0, 0.0]]), np.zeros((1, 2)))[0].tolist()
    [[0.25, -0.25]]

    Source: Bridle 1990, by the chain rule; rows without keys: this project's choice, and that
    of PyTorch's attention.
    """
    check(ARRAYS, D_SCORE, d_output, **check_softmax(ARRAYS, score, mask))
    weights, (_, visible) = softmax(score, mask), masked(score, mask)
    d_score = np.zeros_like(score)
    for row in np.ndindex(score.shape[:-1]):
        j = visible[row]
        w, d_weight = weights[row][j], d_output[row][j]
        d_score[row][j] = w * (d_weight - w @ d_weight)
    return d_score, *mask_grad(d_score, mask)


def masked(score: ndarray, mask: Mask) -> tuple[ndarray, ndarray]:
    """The score with a float mask added, and which keys each row sees (softmax, clause 2)."""
    visible = np.ones(score.shape, bool)
    if mask is not None and mask.dtype == bool:
        visible = visible & mask
    elif mask is not None:
        score = score + mask
        visible = visible & (mask.real != -np.inf)
    return score, visible & (score.real != -np.inf)


def dropout(weights: Float[ndarray, "..."], keep: Keep, p: float) -> Float[ndarray, "..."]:
    r"""
    Forget the weights that are not kept, and scale the others up for it.

    .. math:: y = \begin{cases} w / (1 - p) & \text{kept} \\ 0 & \text{dropped} \end{cases}

    1. The draw is an argument, so that this is a function: ``keep`` broadcasts to the weights,
       True = kept.
    2. p is the share that is dropped, 0 <= p < 1. Kept weights of a row need not sum to one.
    3. With p = 0 there may be no draw; p > 0 without one is refused.

    >>> dropout(np.array([0.5, 0.25, 0.25]), np.array([True, False, True]), p=0.75)
    array([2., 0., 1.])

    Source: Srivastava et al. 2014; ``torch.nn.Dropout`` (seed 001, section 2.3).
    """
    check_dropout(ARRAYS, weights, keep, p)
    return np.where(True if keep is None else keep, weights / (1 - p), 0.0)


def dropout_grad(
    d_output: Float[ndarray, "..."], weights: Float[ndarray, "..."], keep: Keep, p: float
) -> tuple[Float[ndarray, "..."]]:
    r"""
    The gradient of :func:`dropout` by the weights: dropout of the gradient, with the same draw.

    .. math:: \bar w = \begin{cases} \bar y / (1 - p) & \text{kept} \\ 0 & \text{dropped}
              \end{cases}

    1. Dropout is linear: the weights themselves play no part.
    2. What is dropped is left out, not multiplied by 0: its gradient is 0 even where
       :math:`\bar y / (1 - p)` would overflow. Within an attention that is an intermediate number
       which leaves its format, so that nothing is said of the row.

    >>> dropout_grad(np.ones(3), np.zeros(3), np.array([True, False, True]), p=0.75)[0]
    array([4., 0., 4.])

    Source: Srivastava et al. 2014, section 5.1.
    """
    check(ARRAYS, D_WEIGHTS, d_output, **check_dropout(ARRAYS, weights, keep, p))
    return (dropout(d_output, keep, p),)


def attend(
    score: ndarray, value: ndarray, mask: Mask = None, keep: Keep = None, p: float = 0.0
) -> Float[ndarray, "... N E"]:
    r"""
    The mean of the values under the weights of the score: what every attention of the catalogue
    ends in.

    .. math:: o_{ie} = \sum_{j \text{ visible}} \text{dropout}(w)_{ij}\, v_{je}

    1. The sum runs over the keys that the row sees. A hidden value is absent: it may be NaN.
    """
    weights = dropout(softmax(score, mask), keep, p)
    _, visible = masked(score, mask)
    output = np.zeros(score.shape[:-1] + value.shape[-1:], np.result_type(weights, value))
    for *batch, i in np.ndindex(score.shape[:-1]):
        j = visible[(*batch, i)]
        output[(*batch, i)] = weights[(*batch, i)][j] @ value[tuple(batch)][j]
    return output


def attend_grad(
    d_output: ndarray,
    score: ndarray,
    value: ndarray,
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
    d_weights: ndarray | None = None,
) -> tuple[Float[ndarray, "... N M"], Float[ndarray, "... M E"]]:
    r"""
    The gradients of :func:`attend` by its score and its values, from the gradient by its output.

    .. math:: \bar v_{je} = \sum_i \text{dropout}(w)_{ij}\, \bar o_{ie}, \qquad
              \bar w_{ij} = \text{dropout}\Big(\sum_e \bar o_{ie} v_{je}\Big), \qquad
              \bar s_{ij} = w_{ij} \Big(\bar w_{ij} - \sum_{j'} w_{ij'} \bar w_{ij'}\Big)

    1. Dropout is linear: the gradient passes it as the weights did, with the same draw.
    2. A hidden key receives exactly 0, and a row that sees no key gives nothing.
    3. Where the weights behind the dropout are a result too, what arrives at them is added to
       :math:`\sum_e \bar o_{ie} v_{je}`.
    """
    weights, (_, visible) = softmax(score, mask), masked(score, mask)
    dropped = dropout(weights, keep, p)
    kept = np.broadcast_to(True if keep is None else keep, score.shape)
    d_score, d_value = np.zeros_like(score), np.zeros_like(value)
    for *batch, i in np.ndindex(score.shape[:-1]):
        row, b = (*batch, i), tuple(batch)
        j = visible[row]
        if not j.any():
            continue
        d_value[b][j] += np.outer(dropped[row][j], d_output[row])
        d_dropped = value[b][j] @ d_output[row]
        d_dropped = d_dropped if d_weights is None else d_dropped + d_weights[row][j]
        d_weight = dropout(d_dropped, kept[row][j], p)
        d_score[row][j] = weights[row][j] * (d_weight - weights[row][j] @ d_weight)
    return d_score, d_value


def products_grad(
    d_products: ndarray, visible: ndarray, query: ndarray, key: ndarray
) -> tuple[ndarray, ndarray]:
    r"""
    The gradients of the inner products :math:`\sum_d q_{id} k_{jd}` by q and k, over the pairs that
    see each other.

    .. math:: \bar q_{id} = \sum_{j \text{ visible}} \bar s_{ij} k_{jd}, \qquad \bar k_{jd} =
              \sum_{i \text{ sees } j} \bar s_{ij} q_{id}
    """
    d_query, d_key = np.zeros_like(query), np.zeros_like(key)
    for *batch, i in np.ndindex(d_products.shape[:-1]):
        row, b = (*batch, i), tuple(batch)
        j = visible[row]
        d_query[row] = d_products[row][j] @ key[b][j]
        d_key[b][j] += np.outer(d_products[row][j], query[row])
    return d_query, d_key


def mask_grad(d_score: ndarray, mask: Mask) -> tuple[ndarray, ...]:
    """
    The gradient by a float mask: that of the score, summed over the axes along which the mask was
    broadcast.
    """
    if mask is None or mask.dtype == bool:
        return ()
    d_mask = d_score.sum(axis=tuple(range(d_score.ndim - mask.ndim)))
    return (
        d_mask.sum(
            axis=tuple(axis for axis, size in enumerate(mask.shape) if size == 1), keepdims=True
        ),
    )


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
    r"""
    Attention by the additive score.

    .. math:: o_{ie} = \sum_{j \text{ visible}} \text{dropout}(\text{softmax}(s +
              \text{mask}))_{ij}\, v_{je},
              \qquad s = \text{additive\_score}(q, k)

    1. One head: the mask has the axes [N M], [B N M] or [B 1 M], or whatever else broadcasts to
       [B N M].
    2. A hidden key is absent, its value too; a row that sees no key gives 0 (:func:`softmax`,
       clauses 2 and 3).

    >>> query, key, value = np.zeros((1, 1, 1)), np.zeros((1, 2, 1)), np.array([[[2.0], [4.0]]])
    >>> one = np.ones((1, 1))
    >>> additive_attention(query, key, value, one, one, np.ones(1)).tolist()
    [[[3.0]]]
    >>> additive_attention(
    ...     query, key, value, one, one, np.ones(1), mask=np.array([[True, False]])
    ... ).tolist()
    [[[2.0]]]

    Source: Bahdanau et al. 2015 (seed 001, section 2.3).
    """
    inputs = query, key, value, w_query, w_key, w_score
    check_additive(ARRAYS, inputs, mask, keep, p)
    return attend(additive_score(query, key, w_query, w_key, w_score), value, mask, keep, p)


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
    r"""
    The gradients of :func:`additive_attention` by query, key, value, w_query, w_key, w_score, and
    by the mask if it is float.

    With :math:`t_{ija} = \tanh(z_{ija})`,
    :math:`z_{ija} = \sum_q W^Q_{aq} q_{iq} + \sum_k W^K_{ak} k_{jk}` and
    :math:`\bar s` of :func:`attend_grad`,

    .. math:: \bar w_a = \sum_{ij} \bar s_{ij} t_{ija}, \qquad \bar z_{ija} = \bar s_{ij} w_a (1 -
              t_{ija}^2), \qquad
              \bar q_{iq} = \sum_{ja} \bar z_{ija} W^Q_{aq}, \qquad \bar W^Q_{aq} = \sum_{ija} \bar
              z_{ija} q_{iq}

    and likewise for key and :math:`W^K`.

    1. The sums run over the pairs that see each other; the gradient by a hidden key or value is
       exactly 0.
    2. The gradient by a float mask is that of the score, summed over the axes along which the mask
       was broadcast.

    >>> query, key, value = np.zeros((1, 1, 1)), np.zeros((1, 2, 1)), np.array([[[2.0], [4.0]]])
    >>> d_query, d_key, *_ = additive_attention_grad(
    ...     np.ones((1, 1, 1)), query, key, value, np.ones((1, 1)), np.ones((1, 1)), np.ones(1)
    ... )
    >>> d_query.ravel().tolist(), d_key.ravel().tolist()
    ([0.0], [-0.5, 0.5])
    """
    inputs = query, key, value, w_query, w_key, w_score
    check(ARRAYS, D_ADDITIVE, d_output, **check_additive(ARRAYS, inputs, mask, keep, p))
    score = additive_score(query, key, w_query, w_key, w_score)
    d_score, d_value = attend_grad(d_output, score, value, mask, keep, p)
    d_query, d_key, d_w_query, d_w_key, d_w_score = (
        np.zeros_like(x) for x in (query, key, w_query, w_key, w_score)
    )
    for b, i, j in np.argwhere(masked(score, mask)[1]):
        t = np.tanh(w_query @ query[b, i] + w_key @ key[b, j])
        d_z = d_score[b, i, j] * w_score * (1 - t**2)
        d_w_score += d_score[b, i, j] * t
        d_query[b, i] += d_z @ w_query
        d_key[b, j] += d_z @ w_key
        d_w_query += np.outer(d_z, query[b, i])
        d_w_key += np.outer(d_z, key[b, j])
    return d_query, d_key, d_value, d_w_query, d_w_key, d_w_score, *mask_grad(d_score, mask)


def scores_shape(query: ndarray, key: ndarray) -> tuple[int, ...]:
    """[... N M], the shape to which masks broadcast."""
    return (*query.shape[:-1], key.shape[-2])


def scaled_dot_product_attention(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[ndarray, "B H N E"]:
    r"""
    Attention by the scaled inner product, for every head on its own.

    .. math:: o_{ie} = \sum_{j \text{ visible}} \text{dropout}(\text{softmax}(s +
              \text{mask}))_{ij}\, v_{je}, \qquad
              s_{ij} = \frac{1}{\sqrt D} \sum_d q_{id} k_{jd}

    1. A float mask is added after the division by the root: the scale does not touch it.
    2. The mask broadcasts to [B H N M]; the value's width E may differ from D.
    3. A hidden key is absent, its value too; a row that sees no key gives 0 (:func:`softmax`,
       clauses 2 and 3).
    4. Nothing is causal unless the mask says so.

    >>> query = np.zeros((1, 1, 1, 4))
    >>> key, value = np.zeros((1, 1, 3, 4)), np.array([[[[3.0], [6.0], [np.nan]]]])
    >>> scaled_dot_product_attention(
    ...     query, key, value, mask=np.array([True, True, False])
    ... ).item()
    4.5
    >>> scaled_dot_product_attention(
    ...     query, key, value, mask=np.array([0.0, np.log(2.0), -np.inf])
    ... ).round(9).item()
    5.0

    Source: Vaswani et al. 2017, section 3.2.1 (seed 001, section 2.3).
    """
    check_attention(ARRAYS, query, key, value, mask, keep, p)
    return attend(scaled_dot_product_score(query, key), value, mask, keep, p)


def scaled_dot_product_attention_grad(
    d_output: Float[ndarray, "B H N E"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B H M D"],
    value: Float[ndarray, "B H M E"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[ndarray, ...]:
    r"""
    The gradients of :func:`scaled_dot_product_attention` by query, key and value, and by the mask
    if it is float.

    .. math:: \bar q_{id} = \frac{1}{\sqrt D} \sum_{j \text{ visible}} \bar s_{ij} k_{jd}, \qquad
              \bar k_{jd} = \frac{1}{\sqrt D} \sum_{i \text{ sees } j} \bar s_{ij} q_{id}

    with :math:`\bar s` and :math:`\bar v` of :func:`attend_grad`.

    1. The gradient by a hidden key or value, and by an infinite entry of the mask, is exactly 0.
    2. The gradient by a float mask is that of the score, summed over the axes along which the mask
       was broadcast.

    >>> query, key = np.array([[[[2.0]]]]), np.array([[[[0.0], [0.0]]]])
    >>> value = np.array([[[[2.0], [4.0]]]])
    >>> d_query, d_key, d_value = scaled_dot_product_attention_grad(
    ...     np.ones((1, 1, 1, 1)), query, key, value
    ... )
    >>> d_query.ravel().tolist(), d_key.ravel().tolist(), d_value.ravel().tolist()
    ([0.0], [-1.0, 1.0], [0.5, 0.5])
    """
    check(ARRAYS, D_HEADS, d_output, **check_attention(ARRAYS, query, key, value, mask, keep, p))
    score = scaled_dot_product_score(query, key)
    d_score, d_value = attend_grad(d_output, score, value, mask, keep, p)
    d_query, d_key = products_grad(
        d_score / np.sqrt(query.shape[-1]), masked(score, mask)[1], query, key
    )
    return d_query, d_key, d_value, *mask_grad(d_score, mask)
