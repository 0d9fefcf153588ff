"""Bounds for ALiBi: slopes, biases, attention."""

from collections.abc import Callable
from math import floor, log2

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import gamma, rounding_error, storage_error
from attnverify.bounds.scores import Products, biased_error, products, score_error
from attnverify.bounds.softmax_rows import Precisions, causal, rows, total
from attnverify.bounds.weighted_mean import WeightedMean, weighted_mean, weighted_mean_error
from attnverify.precision import Precision


def slopes(n_heads: int) -> ndarray:
    """
    Compute 2^(-8h/n) for the power of two n below, then every other slope of the power of two
    above.
    """
    n = 2 ** floor(log2(n_heads))
    first = 2.0 ** (-8.0 * np.arange(1, n + 1) / n)
    rest = 2.0 ** (-4.0 * np.arange(1, 1 + 2 * (n_heads - n), 2) / n)
    return np.concatenate([first, rest])


def slope_error(m: ndarray, P: Precision) -> ndarray:
    """
    Compute rounded(m, max(16, 2h + 2 exp_ulps, 3 |log m| + 2 exp_ulps) u m, bias) for the h-th term
    of its geometric sequence.

    A running product rounds the ratio once, takes it h times, and rounds h products; a power of the
    rounded ratio takes it h times and errs by exp_ulps ulps; exp(h log ratio) makes three roundings
    in an exponent of size |log m|.
    """
    n = 2 ** floor(log2(len(m)))
    h = np.concatenate([np.arange(1, n + 1), np.arange(1, 1 + 2 * (len(m) - n), 2)])
    steps = np.maximum(
        np.maximum(16, 2 * h + 2 * P.exp_ulps), 3 * np.abs(np.log(m)) + 2 * P.exp_ulps
    )
    return rounding_error(m, steps * P.acc.u * m, P.bias)


def get_slopes(n_heads: int, *, precision: Precisions) -> ndarray:
    """Bound `slope_error`, stored."""
    m = slopes(n_heads)
    return total(lambda P: storage_error(m, slope_error(m, P), P.bias, P.storage), precision)


def bias_error(m: ndarray, count: ndarray, P: Precision) -> ndarray:
    """
    Compute rounded(m c, E_m |c|, bias) for whole numbers c, which are exact up to 2^p; exactly 0
    where c is 0.
    """
    m, Em, size = m[:, None, None], slope_error(m, P)[:, None, None], np.abs(count)
    inexact = gamma(1, P.bias.u) * size * (size > 2.0**P.bias.p)
    E = rounding_error(m * count, Em * size + (m + Em) * inexact, P.bias)
    return np.where(count == 0, 0.0, E)


def get_alibi_biases(n_heads: int, visible: ndarray, *, precision: Precisions) -> ndarray:
    """Bound `bias_error` of slope times the running count of visible keys, stored."""
    m, count = slopes(n_heads), np.cumsum(visible, -1)
    x = m[:, None, None] * count
    return total(
        lambda P: np.where(
            count == 0, 0.0, storage_error(x, bias_error(m, count, P), P.bias, P.storage)
        ),
        precision,
    )


def alibi_distance(N: int, M: int, first: int | None) -> ndarray:
    """
    Compute j - (M - N + i), or first + j where a backend adds slope * (first + j): the same weights
    at another size of score.
    """
    i, j = np.arange(N)[:, None], np.arange(M)
    return j - (i + M - N) if first is None else np.broadcast_to(first + j, (N, M))


Alibi = tuple[Products, ndarray, ndarray, WeightedMean]


def alibi_mixture(
    query: ndarray, key: ndarray, value: ndarray, visible: ndarray | None, first: int | None = None
) -> Alibi:
    """
    Compute the products, slopes, distances and the weighted mean, with the bias in the given form.
    """
    at = products(query, key)
    N, M = at.raw.shape[-2:]
    m, distance = slopes(query.shape[1]), alibi_distance(N, M, first)
    s = at.raw * at.scale + m[:, None, None] * distance
    return at, m, distance, weighted_mean(rows(s, causal(N, M, visible), at.lost), value)


def alibi_forms(
    query: ndarray, key: ndarray, value: ndarray, visible: ndarray | None
) -> Callable[[Precision], tuple[Alibi, ...]]:
    """
    List the forms in which a Precision may add its bias; where there are several, the bound is the
    largest of theirs.

    "relative" adds slope * (j - i'), i' = M - N + i; "absolute" adds slope * j or, counting from
    one as the paper's code does, slope * (j + 1). All differ by a constant per row, so that the
    weights are the same, but E(s + bias) >= u |s + bias| and E_bias = E_m |count| are not: neither
    absolute form is larger for every sign of s.
    """
    relative = (alibi_mixture(query, key, value, visible),)

    return lambda P: (
        relative
        if P.bias_form == "relative"
        else tuple(alibi_mixture(query, key, value, visible, first) for first in (0, 1))
    )


def alibi_error(
    at: Products,
    m: ndarray,
    distance: ndarray,
    P: Precision,
    Eq: ndarray | None = None,
    Ek: ndarray | None = None,
) -> ndarray:
    """
    Bound the error of the scaled score plus the bias, `biased_error`: the product of D terms may
    begin with the bias.
    """
    bias = m[:, None, None] * distance
    E = score_error(at, P, Eq, Ek, addends=1)
    s = at.raw * at.scale + bias
    return biased_error(s, E, bias, bias_error(m, distance, P), P, at.q.shape[-1] + 1)


def alibi_attention(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    visible: ndarray | None = None,
    *,
    precision: Precisions,
) -> ndarray:
    """Compute `alibi_error`, then `mixture_error`, for each of the `alibi_forms`."""
    forms = alibi_forms(query, key, value, visible)

    def error(P: Precision) -> ndarray:
        errors = [
            weighted_mean_error(mix, alibi_error(at, m, distance, P), None, P, P.storage)
            for at, m, distance, mix in forms(P)
        ]
        return np.maximum.reduce(errors)

    return total(error, precision)
