"""The error of o = sum_j p_j x_j, a softmax row times the values, x_j = factor_j v_j."""

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import gamma, operand_error, rounding_error
from attnverify.bounds.softmax_rows import (
    Rows,
    exponent_error,
    exponential_underflow,
    finite,
    normaliser_error,
    rescaled_sum_error,
    weight_increase,
)
from attnverify.precision import Format, Precision

LARGE = (
    8e6  # above this many terms |x_j - o| is not formed one by one: 64 MB for each array of them
)


@dataclass(frozen=True)
class WeightedMean:
    """
    In float64: the rows, v, |v|, the dropout factor and the share 1/(1-p) that it is where nothing
    is dropped, o, |x - o| one by one (small cases) or None, and what follows.
    """

    rows: Rows
    v: ndarray
    size: ndarray
    factor: ndarray | None
    share: float
    o: ndarray
    apart: ndarray | None
    spread: ndarray
    cap: ndarray
    top: ndarray
    lost: ndarray | None

    @property
    def scaled(self) -> bool:
        """Whether a kept weight is multiplied by something other than 1."""
        return self.share != 1


def weighted_mean(
    at: Rows, value: ndarray, keep: ndarray | None = None, p: float = 0.0
) -> WeightedMean:
    """
    Compute the weighted mean of the values, its distance |x - o| to each of them, and that
    distance's mean and maximum.
    """
    v, bad = finite(value)
    if (
        at.visible is not None
    ):  # what stands in a slot that no query sees must not come back through a maximum over keys
        v = np.where(at.seen_keys[..., None], v, 0.0)
    share = 1.0 if keep is None else 1 / (1 - p)
    factor = None if keep is None else np.where(np.broadcast_to(keep, at.s.shape), share, 0.0)
    weight = at.p if factor is None else at.p * factor
    o, size = weight @ v, np.abs(v)
    if o.size * v.shape[-2] > LARGE:
        top = np.broadcast_to(size.max(-2, keepdims=True) * share, o.shape)
        part = WeightedMean(at, v, size, factor, share, o, None, o, top + np.abs(o), top, None)
        spread, apart, cap, top = distance(part, at.p), None, part.cap, part.top
    else:
        x = v[..., None, :, :] if factor is None else factor[..., None] * v[..., None, :, :]
        size_x = np.abs(x)
        # o itself is rounded in float64, which |x - o| must survive where one weight is almost 1
        guard = 2.0**-52 * (v.shape[-2] + 4) * size_x.max(-2, keepdims=True)
        apart = np.abs(x - o[..., None, :]) + guard
        if at.visible is not None:
            seen = at.visible[..., None]
            apart, size_x = np.where(seen, apart, 0.0), np.where(seen, size_x, 0.0)
        spread, cap, top = (at.p[..., None, :] @ apart)[..., 0, :], apart.max(-2), size_x.max(-2)
    lost = (
        None
        if bad is None
        else np.broadcast_to(True if at.visible is None else at.visible, at.s.shape) @ bad
    )
    return WeightedMean(at, v, size, factor, share, o, apart, spread, cap, top, lost)


def distance(mix: WeightedMean, weight: ndarray) -> ndarray:
    """
    Compute sum_j weight_j |x_j - o|, term by term; in large cases by Cauchy and Schwarz, from
    matrix products only:

        sum w |x-o| <= sqrt(sum w) sqrt(sum w (x-o)^2), the square expanded around the column mean
        of the values

    which cancels, hence the float64 guard.
    """
    if mix.apart is not None:
        return np.asarray((weight[..., None, :] @ mix.apart)[..., 0, :])
    factor = 1.0 if mix.factor is None else mix.factor
    centre = mix.v.mean(-2, keepdims=True) if mix.factor is None else 0.0
    v, o, whole = mix.v - centre, mix.o - centre, weight.sum(-1, keepdims=True)
    second = (weight * factor**2) @ (v * v)
    square = second - 2 * o * ((weight * factor) @ v) + o * o * whole
    guard = 4e-16 * v.shape[-2] * (second + o * o * whole)
    return np.asarray(np.sqrt(whole) * np.sqrt(np.maximum(square, 0.0) + guard))


def weighted_mean_error(
    mix: WeightedMean, Es: ndarray | None, Ev: ndarray | None, P: Precision, fmt: Format
) -> ndarray:
    """
    Bound the error of o, stored in `fmt`, from the errors of scores and values: `exponent_error`,
    then `mean_error`.
    """
    return mean_error(mix, exponent_error(mix.rows, Es, P), Ev, P, fmt)


def mean_error(
    mix: WeightedMean, E: ndarray, Ev: ndarray | None, P: Precision, fmt: Format
) -> ndarray:
    """
    Bound the error of o, stored in `fmt`, from the errors E of the exponents. With W+ = p e^E and
    W- = sum p e^-E:

        e1 = sum p (e^E - 1) |x - o| / W-            the scores' errors, centred since sum p
        (x - o) = 0; at most max |x - o|
        M  = min(sum W+ |x| / W-, max |x|)           a majorant of sum p' |x|
        e2 = g(1, u_prob) max(M, sum p |x-o| / W- + 2 e1)    rounding P
             + sum min(eta, p) |x|                           x = 0 for what P's underflow hides
             + sum `exponential_underflow` |x|
        ev = sum W+ Ev / W-                                  the values' own errors, at most max Ev
        e3 = R (M + e2 + ev) + (n + 2K + 4) eta / (1-p)      the sum over keys
        e4 = rl (|o| + e1 + e2 + e3 + ev) / (1 - rl)         normaliser and division

    e2 takes the larger of the two because the normaliser may have been summed before or after P was
    rounded. Dropout with p > 0 adds one rounding to P and three to the constant 1/(1-p) and its
    product, which may come last: what a product or a sum has lost to underflow by then, it
    multiplies.
    """
    at, n = mix.rows, mix.v.shape[-2]
    up = weight_increase(at, E)
    floor = np.exp(at.d - E).sum(-1, keepdims=True)
    floor = floor if at.fully_masked is None else np.where(at.fully_masked, 1.0, floor)
    Ev = operand_error(mix.v, Ev, P)
    e1 = np.fmin(distance(mix, up) / floor, mix.cap)
    above = up + at.w if mix.factor is None else (up + at.w) * mix.factor
    M = np.fmin((above @ mix.size) / floor, mix.top)
    relative = gamma(1 + mix.scaled, P.prob.u) + (
        P.operand.u if P.operand and P.operand.p < P.prob.p else 0.0
    )
    relative += gamma(3, (P.scale_const or P.acc).u) if mix.scaled else 0.0
    centred = np.fmin(mix.spread * (at.norm / floor) + 2 * e1, 2 * mix.cap)
    e2 = relative * np.fmax(M, centred) + _underflow_error(mix, P)
    moved = e1 + e2
    R = rescaled_sum_error(n, P)
    e3 = R * (M + e2) + (n + 2 * ceil(n / P.block) + 4) * P.acc.eta * mix.share
    if Ev is not None:
        ev = np.fmin((above @ Ev) / floor, _largest_value_error(mix, Ev))
        moved, e3 = moved + ev, e3 + R * ev
    moved = moved + e3
    rl = np.minimum(normaliser_error(at, P), 1.0)  # from 1 on nothing is known of the quotient
    moved = moved + rl * (np.abs(mix.o) + moved) / (1 - rl)
    return _settle_bound(mix, E, rounding_error(mix.o, moved, fmt))


def _underflow_error(mix: WeightedMean, P: Precision) -> float | ndarray:
    """
    Compute sum min(eta, p) |x| over the weights that may lie below the smallest normal number of
    prob, exp or the operands.
    """
    formats = [P.prob, P.softmax] + ([P.operand] if P.operand else [])
    eta, tiny = max(f.eta for f in formats), max(f.tiny for f in formats)
    if P.storage.ftz:
        eta, tiny = max(eta, P.storage.tiny), max(tiny, P.storage.tiny)
    small = np.minimum(mix.rows.p, eta) * (mix.rows.p < 2 * tiny)
    small = small + exponential_underflow(mix.rows, P)
    if mix.factor is not None:
        small = small * mix.factor
    return np.asarray(small @ mix.size) if small.any() else 0.0


def _largest_value_error(mix: WeightedMean, Ev: ndarray) -> ndarray:
    """
    Compute max_j factor_j Ev_j: a mean of the values moves by no more than the value that moves
    most.
    """
    most = Ev.max(-2, keepdims=True)
    return most if mix.factor is None else most * mix.factor.max()


def _settle_bound(mix: WeightedMean, E: ndarray, bound: ndarray) -> ndarray:
    """Give the bound, zero in a row without keys, inf in a row that left the domain."""
    if not np.isfinite(E.sum()):
        bound = np.where(np.isfinite(E).all(-1, keepdims=True), bound, np.inf)
    if mix.lost is not None:
        bound = np.where(mix.lost, np.inf, bound)
    return bound if mix.rows.fully_masked is None else np.where(mix.rows.fully_masked, 0.0, bound)


def dropout_error(x: ndarray, E: ndarray, mix: WeightedMean, P: Precision) -> ndarray:
    """
    Bound the error after the dropout factor: exact for p = 0, else the constant's three roundings
    and one to `prob`.
    """
    E = E if mix.factor is None else E * mix.factor
    return (
        rounding_error(x, E + gamma(3, (P.scale_const or P.acc).u) * (np.abs(x) + E), P.prob)
        if mix.scaled
        else E
    )
