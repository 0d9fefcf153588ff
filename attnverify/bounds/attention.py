"""Bounds for softmax, dropout and the two attentions."""

from collections.abc import Callable

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import gamma, rounding_error
from attnverify.bounds.scores import (
    Additive,
    Products,
    additive,
    additive_error,
    biased_error,
    products,
    score_error,
)
from attnverify.bounds.softmax_rows import (
    Precisions,
    Rows,
    finite,
    probability_error,
    rows,
    split_mask,
    total,
    zero_where_hidden,
)
from attnverify.bounds.weighted_mean import (
    WeightedMean,
    dropout_error,
    weighted_mean,
    weighted_mean_error,
)
from attnverify.precision import Precision

ScoreError = Callable[[Precision], ndarray | None]
SumError = Callable[[Precision, int], ndarray | None]
"""The error of a score whose sum may begin with so many addends."""


def masked(
    s: ndarray, error: SumError, mask: ndarray | None, lost: ndarray | None, terms: int = 0
) -> tuple[Rows, ScoreError]:
    """
    Compute the softmax rows of a score, a sum of so many terms, under a mask, and the error of the
    score after a float mask was added.
    """
    bias, visible = split_mask(mask)
    if bias is None:
        return rows(s, visible, lost), lambda P: error(P, 0)
    biased, summed = s + bias, terms and terms + 1

    def with_bias(P: Precision) -> ndarray:
        E = error(P, 1)
        E = np.zeros_like(s) if E is None else E
        return biased_error(biased, E, bias, None, P, summed)

    return rows(biased, visible, lost), with_bias


def masked_products(
    at: Products, mask: ndarray | None, Eq: ndarray | None = None, Ek: ndarray | None = None
) -> tuple[Rows, ScoreError]:
    """Compute the rows of q.k / sqrt(D) under a mask, and the error of their scores."""
    error = lambda P, addends: score_error(at, P, Eq, Ek, addends)
    return masked(at.raw * at.scale, error, mask, at.lost, at.q.shape[-1])


def masked_additive(at: Additive, mask: ndarray | None) -> tuple[Rows, ScoreError]:
    """Compute the rows of w.tanh(W_q q + W_k k) under a mask."""
    error = lambda P, addends: additive_error(at, P, addends)
    return masked(at.s, error, mask, at.lost, at.w.size)


def weights_error(at: Rows, Es: ndarray | None, P: Precision) -> ndarray:
    """Bound the error of the softmax weights, stored; zero at hidden keys."""
    E = probability_error(at, Es, P)
    return np.where(np.isinf(E), np.inf, zero_where_hidden(at, rounding_error(at.p, E, P.storage)))


def dropped_weights_error(mix: WeightedMean, Es: ndarray | None, P: Precision) -> ndarray:
    """Bound the error of the weights behind a dropout, stored; zero where one is dropped."""
    if mix.factor is None:
        return weights_error(mix.rows, Es, P)
    E = probability_error(mix.rows, Es, P)
    w, E = mix.rows.p * mix.factor, dropout_error(mix.rows.p * mix.factor, E, mix, P)
    E_w = zero_where_hidden(mix.rows, rounding_error(w, E, P.storage))
    return np.where(np.isinf(E), np.inf, np.where(mix.factor == 0, 0.0, E_w))


def softmax(score: ndarray, mask: ndarray | None = None, *, precision: Precisions) -> ndarray:
    """
    Bound the error of the softmax of an exact score: see `probability_error`; a float mask costs
    one rounding to `score`.
    """
    hidden = score == -np.inf
    s, lost = finite(np.where(hidden, 0.0, score) if hidden.any() else score)
    at, error = masked(s, lambda P, addends: None, mask, lost)
    if hidden.any():
        at = rows(at.s, ~hidden if at.visible is None else at.visible & ~hidden, lost)
    return total(lambda P: weights_error(at, error(P), P), precision)


def dropout(weights: ndarray, keep: ndarray | None, p: float, *, precision: Precisions) -> ndarray:
    """
    Bound the error of keep * weights / (1-p): three roundings of constant and product, one to
    storage; none at all for p = 0.
    """
    if keep is None or p == 0:
        return np.zeros_like(weights)
    y, bad = finite(np.where(keep, weights, 0.0) / (1 - p))

    def error(P: Precision) -> ndarray:
        E = rounding_error(y, gamma(3, (P.scale_const or P.acc).u) * np.abs(y), P.storage)
        E = E if bad is None else np.where(bad, np.inf, E)
        return np.where(keep, E, 0.0)

    return total(error, precision)


def attended(mix: WeightedMean, error: ScoreError, precision: Precisions) -> ndarray:
    """Compute the bound of an attention whose scores have the given error, stored."""
    return total(lambda P: weighted_mean_error(mix, error(P), None, P, P.storage), precision)


def scaled_dot_product_attention(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
    *,
    precision: Precisions,
) -> ndarray:
    """
    Bound the error of softmax(q.k / sqrt(D) + mask) v: `score_error`, one rounding for a float
    mask, then `mixture_error`.
    """
    at = products(query, key)
    chain, error = masked_products(at, mask)
    return attended(weighted_mean(chain, value, keep, p), error, precision)


def additive_attention(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    w_query: ndarray,
    w_key: ndarray,
    w_score: ndarray,
    mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
    *,
    precision: Precisions,
) -> ndarray:
    """
    Bound the error of softmax(w.tanh(W_q q + W_k k) + mask) v: `additive_error`, the mask's
    rounding, then `mixture_error`.
    """
    at = additive(query, key, w_query, w_key, w_score)
    chain, error = masked_additive(at, mask)
    return attended(weighted_mean(chain, value, keep, p), error, precision)
