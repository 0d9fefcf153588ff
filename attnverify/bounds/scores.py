"""
Bounds for the scores: products of queries and keys, their scale, what is added to them; and the
additive score.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import log2, sqrt

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import (
    dot_error,
    gamma,
    operand_error,
    partial_sums,
    rounding_error,
    start_error,
    storage_error,
    underflow,
    with_overflow,
)
from attnverify.bounds.softmax_rows import Precisions, finite, nonfinite_pairs, total
from attnverify.precision import Format, Precision


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
    """Compute all q.k, before the scale."""
    q, bad_q = finite(query)
    k, bad_k = finite(key)
    kT = k.swapaxes(-1, -2)
    raw = q @ kT
    return Products(q, kT, raw, 1 / sqrt(q.shape[-1]), nonfinite_pairs(bad_q, bad_k, raw.shape))


def prescaled(x: ndarray, E: ndarray | None, scale: float, fmt: Format) -> ndarray | None:
    """
    Two more roundings to `fmt`, constant and product, where the scale comes before the product; its
    underflow counts as seen before the scale.
    """
    if scale == 1:
        return E
    grown = gamma(2, fmt.u) * (np.abs(x) if E is None else np.abs(x) + E) + 2 * fmt.eta / scale
    return grown if E is None else E + grown


def factor_error(
    x: ndarray, E: ndarray | None, scale: float, P: Precision, *, stored: bool = True
) -> ndarray | None:
    """
    Bound the error of a factor of a product that is scaled, on its way into it. A scale that comes
    first is rounded to `prescale` and then to the operand format; without `prescale` nothing scaled
    is kept, but a library may scale what it has loaded already (alpha of a BLAS), in `acc`.
    """
    if P.prescale is not None:
        return operand_error(x, prescaled(x, E, scale, P.prescale), P)
    return prescaled(x, operand_error(x, E, P, stored=stored), scale, P.acc)


def scaled_underflow(terms: int, scale: float, P: Precision) -> float:
    """
    Bound what a product of scaled factors loses to underflow beyond one that is scaled afterwards,
    as seen before the scale.
    """
    return underflow(terms, P) * (1 / scale - 1)


def product_error(
    at: Products,
    P: Precision,
    Eq: ndarray | None = None,
    Ek: ndarray | None = None,
    addends: int = 0,
) -> ndarray:
    """
    E0 = dot(q, Eq', k, Ek') with the errors of operand format and prescale, then one rounding to
    `score`. The sum may begin with so many addends.
    """
    Eq, Ek = (factor_error(x, E, at.scale, P) for x, E in ((at.q, Eq), (at.kT, Ek)))
    terms = at.q.shape[-1] + addends
    E = dot_error(at.q, Eq, at.kT, Ek, P, terms) + scaled_underflow(terms, at.scale, P)
    return rounding_error(at.raw, E, P.score)


def scaled_error(s: ndarray, E: ndarray, scale: float, P: Precision) -> ndarray:
    """
    Bound the error of s = scale x, x with error E:

        E1 = scale E,  E2 = E1 + 2 u_const (|s| + E1),  E3 = rounded(s, E2, score)     E3 = E1 if
        scale is a power of two
    """
    E1 = scale * E
    if log2(scale).is_integer():
        return E1 + P.score.eta * (scale != 1)
    E2 = E1 + 2 * (P.scale_const or P.acc).u * (np.abs(s) + E1)
    return rounding_error(s, E2, P.score, fits=True)


def score_error(
    at: Products,
    P: Precision,
    Eq: ndarray | None = None,
    Ek: ndarray | None = None,
    addends: int = 0,
) -> ndarray:
    """Bound the error of q.k / sqrt(D), whose sum may begin with so many addends."""
    return scaled_error(at.raw * at.scale, product_error(at, P, Eq, Ek, addends), at.scale, P)


def biased_error(
    s: ndarray, E: ndarray, bias: ndarray, Eb: ndarray | None, P: Precision, terms: int = 0
) -> ndarray:
    """
    Bound the error of s after a bias with the error Eb was added:

        rounded(s, E + Eb + acc(terms) (|bias| + Eb) + g(1, u) (|s - bias| + |bias| + Eb), score)

    since the sum of so many terms that s is may begin with the bias (0: s is no sum), and since
    score and bias may each be multiplied by log2(e), for an exponential to the base 2, before they
    are added: where they cancel, what that rounds stays, u of `softmax`. The softmax checks the
    range.
    """
    size = np.abs(bias) if Eb is None else np.abs(bias) + Eb
    E = E + gamma(1, P.softmax.u) * (np.abs(s - bias) + size)
    E = E + start_error(size, terms, P) if terms else E
    return rounding_error(s, E if Eb is None else E + Eb, P.score, fits=True)


@dataclass(frozen=True)
class Addends:
    """The parts of a score, with what is the same under every arithmetic worked out once."""

    parts: tuple[ndarray, ...]

    @cached_property
    def whole(self) -> ndarray:
        return reduce(np.add, self.parts)

    @cached_property
    def size(self) -> ndarray:
        """Sum the sizes of the parts."""
        return reduce(np.add, [np.abs(x) for x in self.parts])

    @cached_property
    def partial_sums(self) -> tuple[ndarray, ndarray]:
        return partial_sums(self.parts)


def summed_score_error(addends: Addends, E: ndarray, scale: float, P: Precision) -> ndarray:
    """
    Bound the error of s = scale (x_1 + x_2 + ...), parts whose products have the error E
    altogether.

    Each part is rounded to `score`, and once more where it is scaled apart from the others; so is
    each sum of two, in any tree of additions (`partial_sums`), and the whole:

        E1 = E + g(1 or 2, u) (sum |x| + E) + g(1, u) (partial sums + (parts - 2) E),
        E2 = rounded(sum x, E1, score),  E3 = scale E2 + 2 u_const (scale sum |x| + scale E2)

    All that is kept must fit `score`.
    """
    exact, count = log2(scale).is_integer(), len(addends.parts)
    size, (partial, most) = addends.size, addends.partial_sums
    E = with_overflow(E, most + E, P.score)
    E = (
        E
        + gamma(2 - exact, P.score.u) * (size + E)
        + gamma(1, P.score.u) * (partial + (count - 2) * E)
        + 2 * count * P.score.eta
    )
    E = scale * rounding_error(addends.whole, E, P.score)
    if exact:
        return E + P.score.eta * (scale != 1)
    return E + 2 * (P.scale_const or P.acc).u * (scale * size + E) + P.score.eta


def scaled_dot_product_score(query: ndarray, key: ndarray, *, precision: Precisions) -> ndarray:
    """Bound the error of q.k / sqrt(D), stored."""
    at = products(query, key)
    return score_bound(at.raw * at.scale, at.lost, lambda P: score_error(at, P), precision)


def score_bound(
    s: ndarray, lost: ndarray | None, error: Callable[[Precision], ndarray], precision: Precisions
) -> ndarray:
    """
    Compute the bound of a score that is itself the result: rounded to storage, inf where it is no
    number or does not fit.
    """

    def bound(P: Precision) -> ndarray:
        E = with_overflow(error(P), np.abs(s), P.score)
        E = storage_error(s, E, P.score, P.storage)
        return E if lost is None else np.where(lost, np.inf, E)

    return total(bound, precision)


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
    """Compute all w . tanh(W_q q + W_k k)."""
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
    Bound the error of t = tanh(W_q q + W_k k).

    Projections by `dot`, over Q + K terms since one product of the joined vectors may form both,
    and rounded to `score`; so is their sum. tanh' = sech^2 is largest where |z| is smallest:
    E_t = min(2, E_z sech^2(max(|z| - E_z, 0))) + `tangent_error`, rounded to `score`.
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
    Et = np.fmin(2.0, Ez * (1 - np.tanh(flattest) ** 2 + 1e-300)) + tangent_error(at, P)
    Et = np.where(np.isinf(Ez), np.inf, Et)
    return rounding_error(at.t, Et, P.score)


def tangent_error(at: Additive, P: Precision) -> ndarray:
    """
    Bound the error of tanh itself, of an exact z: 2 tanh_ulps u |t| where it is a function of its
    own.

    By an exponential it is 1 - 2/(1 + e) or 2 e/(1 + e) - 1, e = exp(2z) or exp(2 z_q) exp(2 z_k).
    The exponents, by base 2, lose g(3, u) 2 (|z_q| + |z_k|), their exponentials 2 exp_ulps u each
    and the product u, all relative to e; the quotient takes a share of (1 - t^2) / 2 of that, and
    up to five roundings of its own (1 + e, two divisions by one reciprocal, the last difference):

        (1 - t^2) (2 exp_ulps u + g(3, u) (|z_q| + |z_k|) + u) + g(5, u) (1 + |t|)

    Within it is (w_1 + w_2) - 2 (w_1 x_2 + w_2 x_1) / (x_1 x_2), x = 1 + e: w.t of two features
    whose w_1 + w_2 loses nothing; a sixth rounding of the quotient takes that of e.
    """
    u, t = P.softmax.u, np.abs(at.t)
    if P.tanh_form == "relative":
        return 2 * P.tanh_ulps * u * t
    size = np.abs(at.z_q)[..., :, None, :] + np.abs(at.z_k)[..., None, :, :]
    exponential = 2 * P.exp_ulps * u + gamma(3, u) * size + u
    return (1 - t * t) * exponential + gamma(5, u) * (1 + t)


def additive_error(at: Additive, P: Precision, addends: int = 0) -> ndarray:
    """
    Bound the error of w.tanh(...), a product over A terms that may begin with so many addends,
    rounded to `score`; of some queries after others, whose hidden layers a cache holds.
    """
    N, w = at.s.shape[-2], at.w[:, None]
    long, terms = max(BLOCK * N // at.z.size, 1), at.w.size + addends

    def of(rows: slice) -> ndarray:
        q, z_q, s = (x[..., rows, :] for x in (at.q, at.z_q, at.s))
        z, t = (x[..., rows, :, :] for x in (at.z, at.t))
        Et = operand_error(t, tanh_error(replace(at, q=q, z_q=z_q, z=z, t=t, s=s), P), P)
        E = dot_error(t, Et, w, operand_error(w, None, P), P, terms)[..., 0]
        return rounding_error(s, E, P.score, fits=True)

    return np.concatenate([of(slice(i, i + long)) for i in range(0, N, long)], axis=-2)


BLOCK = 2**17
"""Numbers in one block of hidden layers."""


def additive_score(
    query: ndarray,
    key: ndarray,
    w_query: ndarray,
    w_key: ndarray,
    w_score: ndarray,
    *,
    precision: Precisions,
) -> ndarray:
    """Bound the error of w.tanh(W_q q + W_k k), stored."""
    at = additive(query, key, w_query, w_key, w_score)
    return score_bound(at.s, at.lost, lambda P: additive_error(at, P), precision)
