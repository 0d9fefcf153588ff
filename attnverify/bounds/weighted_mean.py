"""The error of o = sum_j p_j x_j, a softmax row times the values, x_j = factor_j v_j."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

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
    stored_underflow,
    weight_increase,
)
from attnverify.precision import Format, Precision

LARGE = 8e6
"""Above this many terms |x_j - o| is not formed one by one: matrix products bound its mean."""
BLOCK = 2**15
"""How many terms are formed at a time: 256 KB, which a cache holds."""


@dataclass(frozen=True)
class WeightedMean:
    """
    In float64: the rows, v, |v|, the dropout factor and the share 1/(1-p) that it is where nothing
    is dropped, o, the largest |x - o| and |x| of the keys that a row sees, and which o is lost.
    """

    rows: Rows
    v: ndarray
    size: ndarray
    factor: ndarray | None
    share: float
    o: ndarray
    cap: ndarray
    top: ndarray
    lost: ndarray | None

    @property
    def scaled(self) -> bool:
        """Whether a kept weight is multiplied by something other than 1."""
        return self.share != 1

    @property
    def large(self) -> bool:
        """Whether there are too many terms |x - o| to form them one by one."""
        return self.o.size * self.v.shape[-2] > LARGE


def weighted_mean(
    at: Rows, value: ndarray, keep: ndarray | None = None, p: float = 0.0
) -> WeightedMean:
    """Compute the weighted mean of the values, and how far from it one of them may lie."""
    v, bad = finite(value)
    if (
        at.visible is not None
    ):  # what stands in a slot that no query sees must not come back through a maximum over keys
        v = np.where(at.seen_keys[..., None], v, 0.0)
    share = 1.0 if keep is None else 1 / (1 - p)
    factor = None if keep is None else np.where(np.broadcast_to(keep, at.s.shape), share, 0.0)
    weight = at.p if factor is None else at.p * factor
    o, size = weight @ v, np.abs(v)
    top = np.broadcast_to(size.max(-2, keepdims=True) * share, o.shape)
    lost = (
        None
        if bad is None
        else np.broadcast_to(True if at.visible is None else at.visible, at.s.shape) @ bad
    )
    mix = WeightedMean(at, v, size, factor, share, o, top + np.abs(o), top, lost)
    return mix if mix.large else _look_at_each(mix)


def _look_at_each(mix: WeightedMean) -> WeightedMean:
    """Put the largest |x - o| and |x| in the place of what bounds them for all rows alike."""
    high, low = _extremes(mix.v, mix.factor, mix.rows.visible, mix.o.shape)
    top, cap = np.fmax(high, -low), np.fmax(high - mix.o, mix.o - low)
    if (alone := mix.rows.fully_masked) is not None:
        top, cap = np.where(alone, 0.0, top), np.where(alone, 0.0, cap)
    return replace(mix, top=top, cap=cap + _guard(mix.v, top))


def _guard(v: ndarray, top: ndarray) -> ndarray:
    """Bound what o's own rounding in float64 adds to |x - o|, which it may be all of."""
    return np.asarray(2.0**-52 * (v.shape[-2] + 4) * top)


def _extremes(
    v: ndarray, factor: ndarray | None, visible: ndarray | None, shape: tuple[int, ...]
) -> tuple[ndarray, ndarray]:
    """
    Find the largest and the smallest x of the keys that a row sees, of the `shape` of o, or with
    one row where all see the same; -inf and inf in a row that sees none.
    """
    if factor is None and visible is None:
        return v.max(-2, keepdims=True), v.min(-2, keepdims=True)
    hidden = np.where(np.atleast_2d(True if visible is None else visible), 0.0, np.inf)
    (*lead, N, E), M = shape, v.shape[-2]
    N = 1 if factor is None and hidden.shape[-2] == 1 else N
    high, low = np.empty((prod(lead), N, E)), np.empty((prod(lead), N, E))
    flat_v, beyond = _flat(v, lead, M, E), _flat(hidden, lead, N, M)
    flat_factor = None if factor is None else _flat(factor, lead, N, M)
    for some, rows in _blocks(prod(lead), N, M * E):
        x = flat_v[some, None]
        if flat_factor is not None:
            x = x * flat_factor[some, rows, :, None]
        far = beyond[some, rows, :, None]
        np.max(x - far, -2, out=high[some, rows])
        np.min(x + far, -2, out=low[some, rows])
    return high.reshape(*lead, N, E), low.reshape(*lead, N, E)


def _flat(x: ndarray, lead: Sequence[int], *last: int) -> ndarray:
    """Broadcast x to the axes `lead`, which become one, and the two `last`."""
    return np.broadcast_to(x, (*lead, *last)).reshape(-1, *last)


def _blocks(heads: int, rows: int, terms: int) -> Iterator[tuple[slice, slice]]:
    """Cut heads and their rows of so many terms into blocks that a cache holds."""
    long = max(BLOCK // terms, 1)
    wide = max(long // rows, 1)
    for head in range(0, heads, wide):
        for row in range(0, rows, long):
            yield slice(head, head + wide), slice(row, row + long)


def distances(mix: WeightedMean, *weights: ndarray) -> list[ndarray]:
    """
    Compute sum_j weight_j |x_j - o| for each of the weights [... N M], which are 0 where a key is
    hidden, term by term; in large cases by `_distance_by_products`.
    """
    if mix.large:
        return [_distance_by_products(mix, weight) for weight in weights]
    (*lead, N, E), M = mix.o.shape, mix.v.shape[-2]
    flat_v, o = _flat(mix.v, lead, M, E), mix.o.reshape(-1, N, 1, E)
    factor = None if mix.factor is None else _flat(mix.factor, lead, N, M)
    each = np.stack([_flat(weight, lead, N, M) for weight in weights], -2)
    found = np.empty((prod(lead), N, len(weights), E))
    for some, rows in _blocks(prod(lead), N, M * E):
        x = flat_v[some, None]
        if factor is not None:
            x = x * factor[some, rows, :, None]
        apart = x - o[some, rows]
        np.matmul(each[some, rows], np.abs(apart, out=apart), out=found[some, rows])
    guard = _guard(mix.v, mix.top)
    return [
        found[:, :, i].reshape(mix.o.shape) + guard * weight.sum(-1, keepdims=True)
        for i, weight in enumerate(weights)
    ]


def _distance_by_products(mix: WeightedMean, weight: ndarray) -> ndarray:
    """
    Bound sum_j weight_j |x_j - o| by Cauchy and Schwarz, from matrix products only:

        sum w |x-o| <= sqrt(sum w) sqrt(sum w (x-o)^2), the square expanded around the column mean
        of the values

    which cancels, hence the float64 guard.
    """
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
             + eta_step / (1-p)                              stored before it is divided
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
    shifted, spread = distances(mix, up, at.p)
    e1 = np.fmin(shifted / floor, mix.cap)
    above = up + at.w if mix.factor is None else (up + at.w) * mix.factor
    M = np.fmin((above @ mix.size) / floor, mix.top)
    relative = gamma(1 + mix.scaled, P.prob.u) + (
        P.operand.u if P.operand and P.operand.p < P.prob.p else 0.0
    )
    relative += gamma(3, (P.scale_const or P.acc).u) if mix.scaled else 0.0
    centred = np.fmin(spread * (at.norm / floor) + 2 * e1, 2 * mix.cap)
    e2 = relative * np.fmax(M, centred) + _underflow_error(mix, E, P)
    moved = e1 + e2
    R = rescaled_sum_error(n, P)
    e3 = R * (M + e2) + (n + 2 * ceil(n / P.block) + 4) * P.acc.eta * mix.share
    e3 = e3 + P.eta_of_steps * mix.share
    if Ev is not None:
        ev = np.fmin((above @ Ev) / floor, _largest_value_error(mix, Ev))
        moved, e3 = moved + ev, e3 + R * ev
    moved = moved + e3
    rl = np.minimum(normaliser_error(at, E, P), 1.0)  # from 1 on nothing is known of the quotient
    moved = moved + rl * (np.abs(mix.o) + moved) / (1 - rl)
    return _settle_bound(mix, E, rounding_error(mix.o, moved, fmt))


def _underflow_error(mix: WeightedMean, E: ndarray, P: Precision) -> float | ndarray:
    """
    Compute sum min(eta, p) |x| over the weights that may lie below the smallest normal number of
    prob, exp or the operands.
    """
    formats = [P.prob, P.softmax] + ([P.operand] if P.operand else [])
    eta, tiny = max(f.eta for f in formats), max(f.tiny for f in formats)
    if P.storage.ftz:
        eta, tiny = max(eta, P.storage.tiny), max(tiny, P.storage.tiny)
    small = exponential_underflow(mix.rows, P) + stored_underflow(mix.rows, E, P)
    if mix.rows.least < 2 * tiny or np.isnan(mix.rows.least):
        small = np.minimum(mix.rows.p, eta) * (mix.rows.p < 2 * tiny) + small
    if small.ndim == 0:
        return 0.0
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
