"""
Bounds for the scores: products of queries and keys, their scale, what is added to them; and the
additive score.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log2, sqrt

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import (
    dot_error,
    gamma,
    operand_error,
    rounding_error,
    storage_error,
    with_overflow,
)
from attnverify.bounds.softmax_rows import Precisions, finite, nonfinite_pairs, total
from attnverify.precision import Precision


@dataclass(frozen=True)
class Products:
    """
    q.k in float64, with the queries, the transposed keys, the scale 1/sqrt(D), and the scores that
    are no numbers.
    """

    q: ndarray
    kT: ndarray
    raw: ndarray
    scale: float
    lost: ndarray | None


def products(query: ndarray, key: ndarray) -> Products:
    """All q.k, before the scale."""
    q, bad_q = finite(query)
    k, bad_k = finite(key)
    kT = k.swapaxes(-1, -2)
    raw = q @ kT
    return Products(q, kT, raw, 1 / sqrt(q.shape[-1]), nonfinite_pairs(bad_q, bad_k, raw.shape))


def prescaled(x: ndarray, E: ndarray | None, scale: float, P: Precision) -> ndarray | None:
    """
    Two more roundings where the scale comes before the product; its underflow counts as seen before
    the scale.
    """
    if P.prescale is None:
        return E
    grown = (
        gamma(2, P.prescale.u) * (np.abs(x) if E is None else np.abs(x) + E)
        + 2 * P.prescale.eta / scale
    )
    return grown if E is None else E + grown


def product_error(
    at: Products, P: Precision, Eq: ndarray | None = None, Ek: ndarray | None = None
) -> ndarray:
    """
    E0 = dot(q, Eq', k, Ek') with the errors of operand format and prescale, then one rounding to
    `score`.
    """
    Eq, Ek = prescaled(at.q, Eq, at.scale, P), prescaled(at.kT, Ek, at.scale, P)
    wide = P.prescale is not None and P.prescale.p > P.storage.p
    Eq, Ek = (operand_error(x, E, P, stored=not wide) for x, E in ((at.q, Eq), (at.kT, Ek)))
    return rounding_error(at.raw, dot_error(at.q, Eq, at.kT, Ek, P), P.score)


def scaled_error(s: ndarray, E: ndarray, scale: float, P: Precision) -> ndarray:
    """
    The error of s = scale x, x with error E:

        E1 = scale E,  E2 = E1 + 2 u_const (|s| + E1),  E3 = rounded(s, E2, score)     E3 = E1 if
        scale is a power of two
    """
    E1 = scale * E
    if log2(scale).is_integer():
        return E1 + P.score.eta * (scale != 1)
    E2 = E1 + 2 * (P.scale_const or P.acc).u * (np.abs(s) + E1)
    return rounding_error(s, E2, P.score, fits=True)


def score_error(
    at: Products, P: Precision, Eq: ndarray | None = None, Ek: ndarray | None = None
) -> ndarray:
    """The error of q.k / sqrt(D)."""
    return scaled_error(at.raw * at.scale, product_error(at, P, Eq, Ek), at.scale, P)


def biased_error(s: ndarray, E: ndarray, P: Precision, Eb: ndarray | None = None) -> ndarray:
    """
    The error of s after a bias with the error Eb was added: rounded(s, E + Eb, score). The softmax
    checks the range.
    """
    return rounding_error(s, E if Eb is None else E + Eb, P.score, fits=True)


def scaled_dot_product_score(query: ndarray, key: ndarray, *, precision: Precisions) -> ndarray:
    """The error of q.k / sqrt(D), stored."""
    at = products(query, key)
    return score_bound(at.raw * at.scale, at.lost, lambda P: score_error(at, P), precision)


def score_bound(
    s: ndarray, lost: ndarray | None, error: Callable[[Precision], ndarray], precision: Precisions
) -> ndarray:
    """
    The bound of a score that is itself the result: rounded to storage, inf where it is no number or
    does not fit.
    """

    def bound(P: Precision) -> ndarray:
        E = with_overflow(error(P), np.abs(s), P.score)
        E = storage_error(s, E, P.score, P.storage)
        return E if lost is None else np.where(lost, np.inf, E)

    return np.asarray(total(bound, precision))


@dataclass(frozen=True)
class Additive:
    """The additive score in float64: z = W_q q + W_k k, t = tanh z, s = w.t."""

    q: ndarray
    k: ndarray
    w_q: ndarray
    w_k: ndarray
    w: ndarray
    z_q: ndarray
    z_k: ndarray
    z: ndarray
    t: ndarray
    s: ndarray
    lost: ndarray | None


def additive(
    query: ndarray, key: ndarray, w_query: ndarray, w_key: ndarray, w_score: ndarray
) -> Additive:
    """All w . tanh(W_q q + W_k k)."""
    q, bad_q = finite(query)
    k, bad_k = finite(key)
    z_q, z_k = q @ w_query.T, k @ w_key.T
    z = z_q[..., :, None, :] + z_k[..., None, :, :]
    t = np.tanh(z)
    s = t @ w_score
    return Additive(
        q, k, w_query, w_key, w_score, z_q, z_k, z, t, s, nonfinite_pairs(bad_q, bad_k, s.shape)
    )


def tanh_error(at: Additive, P: Precision) -> ndarray:
    """
    The error of t = tanh(W_q q + W_k k).

    Projections by `dot`, over Q + K terms since one product of the joined vectors may form both,
    and rounded to `score`; so is their sum. tanh' = sech^2 is largest where |z| is smallest:
    E_t = min(2, E_z sech^2(max(|z| - E_z, 0))) + 2 tanh_ulps u |t|, rounded to `score`.
    """
    n = at.q.shape[-1] + at.k.shape[-1]
    parts = ((at.q, at.w_q, at.z_q), (at.k, at.w_k, at.z_k))
    Eq, Ek = (
        rounding_error(
            z,
            dot_error(x, operand_error(x, None, P), w.T, operand_error(w.T, None, P), P, n),
            P.score,
        )
        for x, w, z in parts
    )
    Ez = rounding_error(at.z, Eq[..., :, None, :] + Ek[..., None, :, :], P.score)
    flattest = np.maximum(np.abs(at.z) - Ez, 0.0)
    Et = np.fmin(
        2.0, Ez * (1 - np.tanh(flattest) ** 2 + 1e-300)
    ) + 2 * P.tanh_ulps * P.softmax.u * np.abs(at.t)
    Et = np.where(np.isinf(Ez), np.inf, Et)
    return rounding_error(at.t, Et, P.score)


def additive_error(at: Additive, P: Precision) -> ndarray:
    """The error of w.tanh(...), a product over A terms, rounded to `score`."""
    w = at.w[:, None]
    E = dot_error(
        at.t,
        operand_error(at.t, tanh_error(at, P), P, stored=False),
        w,
        operand_error(w, None, P),
        P,
    )[..., 0]
    return rounding_error(at.s, E, P.score, fits=True)


def additive_score(
    query: ndarray,
    key: ndarray,
    w_query: ndarray,
    w_key: ndarray,
    w_score: ndarray,
    *,
    precision: Precisions,
) -> ndarray:
    """The error of w.tanh(W_q q + W_k k), stored."""
    at = additive(query, key, w_query, w_key, w_score)
    return score_bound(at.s, at.lost, lambda P: additive_error(at, P), precision)
