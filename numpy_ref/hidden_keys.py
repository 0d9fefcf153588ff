"""
Hidden keys are absent: how this column keeps whatever stands in them out of every sum.

A hidden pair is known by its score, minus infinity, whatever hid it. Its weight is then 0 by
itself, and all that is left to guard is 0 times NaN or infinity, which costs something only where a
value is not finite.
"""

import numpy as np
from numpy import ndarray

__all__ = [
    "attended",
    "attended_grad",
    "dropped",
    "hide",
    "products_grad",
    "sum_seen",
    "weigh",
    "weights_grad",
]

HIDDEN = -np.inf


def hide(score: ndarray, mask: ndarray | None) -> ndarray:
    """The score with the mask in it: minus infinity where a key is hidden."""
    if mask is None:
        return score
    if mask.dtype == bool:
        return np.where(mask, score, HIDDEN)
    return np.where(mask == HIDDEN, HIDDEN, score + mask)


def weigh(score: ndarray) -> ndarray:
    """Softmax over the last axis of a score in which hidden keys are minus infinity."""
    top = score.max(axis=-1, keepdims=True)
    weights = score - np.where(top == HIDDEN, 0, top)
    np.exp(weights, out=weights)
    total = weights.sum(axis=-1, keepdims=True)
    weights /= np.where(total == 0, 1, total)
    if not np.isfinite(total).all():  # NaN and +inf fill their row, but not its hidden keys
        weights[score == HIDDEN] = 0
    return weights


def dropped(weights: ndarray, keep: ndarray | None, p: float) -> ndarray:
    scaled = weights / (1 - p) if p else weights
    return scaled if keep is None else np.where(keep, scaled, 0)


def sum_seen(factor: ndarray, hidden: ndarray, value: ndarray) -> ndarray:
    r"""
    The sum over the pairs that see each other, :math:`\sum_j a_{ij} v_{je}`, for factors that are 0
    where hidden.

    One matrix product; what is not finite is left out of it and added one key at a time, to the
    rows that see that key.
    """
    finite = np.isfinite(value)
    if finite.all():
        return factor @ value
    total = factor @ np.where(finite, value, 0)
    met = ~finite.all(axis=-1) & ~hidden.all(axis=-2)
    for j in np.flatnonzero(met.any(axis=tuple(range(met.ndim - 1)))):
        counts = ~hidden[..., :, j, None] & ~finite[..., None, j, :]
        total += np.where(counts, factor[..., :, j, None] * value[..., None, j, :], 0)
    return total


def attended(
    score: ndarray, value: ndarray, keep: ndarray | None = None, p: float = 0.0
) -> ndarray:
    """
    The mean of the values under the weights of a score in which hidden keys are minus infinity.
    """
    return sum_seen(dropped(weigh(score), keep, p), score == HIDDEN, value)


def attended_grad(
    d_output: ndarray,
    score: ndarray,
    value: ndarray,
    keep: ndarray | None = None,
    p: float = 0.0,
    d_weights: ndarray | float = 0.0,
) -> tuple[ndarray, ndarray]:
    """
    The gradients of :func:`attended` by score and value: two matrix products and the softmax's
    Jacobian. ``d_weights`` arrives at the weights behind the dropout.
    """
    hidden, weights = score == HIDDEN, weigh(score)
    d_value = sum_seen(dropped(weights, keep, p).mT, hidden.mT, d_output)
    d_weights = dropped(d_output @ value.mT + d_weights, keep, p)
    return weights_grad(d_weights, weights, hidden), d_value


def weights_grad(d_weights: ndarray, weights: ndarray, hidden: ndarray) -> ndarray:
    """The gradient by the score from that by its weights: the softmax's Jacobian, row by row."""
    mean = np.where(hidden, 0, weights * d_weights).sum(axis=-1, keepdims=True)
    return np.where(hidden, 0, weights * (d_weights - mean))


def products_grad(
    d_score: ndarray, hidden: ndarray, query: ndarray, key: ndarray
) -> tuple[ndarray, ndarray]:
    """The gradients of query @ key.mT."""
    return sum_seen(d_score, hidden, key), sum_seen(d_score.mT, hidden.mT, query)
