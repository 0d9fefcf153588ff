"""
What the bounds share: hidden keys, the rows of a softmax in float64, and the error of its
exponents.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, log, log1p
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import accumulation_error, gamma
from attnverify.precision import Precision

Precisions = Precision | Iterable[Precision]  # one, or several whose bounds are added

NEGLIGIBLE = 800.0  # exp(-800) is zero in float64, and so in every format


def total(error: Callable[[Precision], Any], precision: Precisions) -> Any:
    """
    Compute the bound under one Precision, or the sum of the bounds under several; under none, the
    function that computes it.
    """
    several = (precision,) if isinstance(precision, Precision) else tuple(precision)
    if not several:
        return lambda P: total(error, P)
    with np.errstate(all="ignore"):
        return added([error(each) for each in several])


def added(parts: list[Any]) -> Any:
    """
    Compute the sum of bounds of one structure, leaf by leaf; what is not a number is out of the
    domain.
    """
    first = parts[0]
    if first is None:
        return None
    if isinstance(first, dict):
        return {name: added([part[name] for part in parts]) for name in first}
    if isinstance(first, list | tuple):
        return type(first)(added([part[i] for part in parts]) for i in range(len(first)))
    E = np.asarray(sum(parts[1:], first))
    return np.where(np.isnan(E), np.inf, E) if np.isnan(E.sum()) else E


def finite(x: ndarray) -> tuple[ndarray, ndarray | None]:
    """x with NaN and inf replaced by zero, and where they were; None where there were none."""
    well = np.isfinite(x)
    return (x, None) if well.all() else (np.where(well, x, 0.0), ~well)


def nonfinite_pairs(
    bad_query: ndarray | None, bad_key: ndarray | None, shape: tuple[int, ...]
) -> ndarray | None:
    """Find the pairs whose score is no number, because a query's or a key's entry is none."""
    lost = None
    for bad, axis in ((bad_query, -1), (bad_key, -2)):
        if bad is not None:
            hit = np.broadcast_to(np.expand_dims(np.any(bad, axis=-1), axis), shape)
            lost = hit if lost is None else lost | hit
    return lost


def split_mask(mask: ndarray | None) -> tuple[ndarray | None, ndarray | None]:
    """
    Split a mask as (what is added to the score, which keys are visible); None where it adds or
    hides nothing, and adding 0 is exact.
    """
    if mask is None:
        return None, None
    if mask.dtype == bool:
        return None, mask
    visible = mask > -np.inf
    bias = mask if visible.all() else np.where(visible, mask, 0.0)
    return bias if bias.any() else None, None if bias is mask else visible


def causal(N: int, M: int, visible: ndarray | None) -> ndarray:
    """Build the end-aligned causal mask, and the caller's where there is one."""
    seen = np.arange(M) <= np.arange(N)[:, None] + (M - N)
    return seen if visible is None else seen & visible


@dataclass(frozen=True)
class Rows:
    """
    Softmax rows in float64: s the scores (-inf where hidden), m their maximum, d = s - m,
    w = exp(d), p = w / sum w.
    """

    s: ndarray
    visible: ndarray | None
    m: ndarray
    d: ndarray
    w: ndarray
    norm: ndarray
    p: ndarray
    fully_masked: ndarray | None
    lost: ndarray | None

    @cached_property
    def seen_keys(self) -> ndarray:
        """The keys [... M] that at least one query sees."""
        return np.asarray(
            np.any(
                np.broadcast_to(True if self.visible is None else self.visible, self.s.shape),
                axis=-2,
            )
        )

    @cached_property
    def least(self) -> float:
        """The smallest weight that is not 0."""
        return float(np.where(self.p == 0, 1.0, self.p).min(initial=1.0))


def rows(score: ndarray, visible: ndarray | None, lost: ndarray | None = None) -> Rows:
    """
    Compute the rows of a finite score; `lost` marks scores that are not numbers, `fully_masked` the
    rows that see no key.
    """
    with np.errstate(all="ignore"):
        s = score if visible is None else np.where(visible, score, -np.inf)
        m = s.max(-1, keepdims=True)
        seen = m > -np.inf
        fully_masked = None if seen.all() else ~seen
        m = m if fully_masked is None else np.where(fully_masked, 0.0, m)
        d = s - m
        w = np.exp(d)
        norm = w.sum(-1, keepdims=True)
        norm = norm if fully_masked is None else np.where(fully_masked, 1.0, norm)
        return Rows(s, visible, m, d, w, norm, w / norm, fully_masked, lost)


def exponent_error(at: Rows, Es: ndarray | None, P: Precision) -> ndarray:
    """
    Bound the error of the exponent s - m as far as numerator and normaliser do not share it.

        E_j = Es + g(3, u) (|s-m| + Es + Em + max(|s|, |m|) + max(Es, Em) + log n) + (K+1)
        (-log(1 - 2 u exp_ulps))

    Subtraction, constant log2(e) and multiplication cost u|s-m| each, the fused form fma(s, c, -m
    c) costs u|m|; the rescale exponents of an online softmax telescope to m - s; a stored
    log-sum-exp costs u (max(|s|, |m|) + log n). Em = max(s + Es) - m is how far the maximum can
    rise; it falls by its own Es at most, which is no more. A row with a score that overflows, other
    than to a harmless -inf far below the maximum, is inf throughout; so is one whose exponents may
    all be moved out of the format (:func:`shared_shift`). Steps that are stored:
    :func:`stored_exponents`.
    """
    n = at.s.shape[-1]
    size = np.abs(at.s)
    peak = np.abs(at.m)
    Es = np.zeros_like(size) if Es is None and at.lost is not None else Es
    shaky = None if Es is None else _admitted_error(at, Es, size, P)
    top = np.maximum(size, peak) - at.d + log(n)
    if shaky is not None:
        Em = (at.s + shaky).max(-1, keepdims=True) - at.m
        Em = Em if at.fully_masked is None else np.where(at.fully_masked, 0.0, Em)
        top = top + (shaky + Em + np.maximum(shaky, Em))
        peak = peak + Em
    E = gamma(3, P.softmax.u) * top + (ceil(n / P.block) + 1) * exponential_error(P)
    if P.unit_of_steps:
        E = E + stored_exponents(at, 0.0 if shaky is None else shaky + Em, P)
    E = E if shaky is None else E + shaky
    out = ~(1.5 * peak <= P.softmax.max)  # m log2(e) must fit as well
    out |= ~(shared_shift(peak, P) + log(n) < log(min(P.softmax.max, 1 / P.softmax.tiny)))
    if shaky is not None and not np.isfinite(shaky.sum()):
        out |= ~np.isfinite(shaky).all(-1, keepdims=True)
    E = np.where(out, np.inf, E) if out.any() else E
    return E if at.visible is None else np.where(at.visible, E, 0.0)


def stored_exponents(at: Rows, Es: ndarray | float, P: Precision) -> ndarray:
    """
    Bound what an exponent loses where each step of a softmax is stored, s - m and its exponential;
    Es is the error of s - m:

        g(1, u_step) (1 + |s - m| + Es)

    Of exp(s - lse) it is s - lse, which is larger by log n at most, and by what lse errs by: less
    than 1, or nothing is said of the row (:func:`normaliser_error`).
    """
    more = 1 + log(at.s.shape[-1]) if P.by_lse else 0.0
    return np.asarray(gamma(1, P.unit_of_steps) * (1 - at.d + Es + more))


def shared_shift(peak: ndarray, P: Precision) -> ndarray:
    """
    Bound how far all exponents of a row may be moved alike: g(2, u) |m|, the rounded m c of the
    form fma(s, c, -m c), once more where parts are merged. The normaliser cancels it as long as it
    neither overflows nor vanishes; what underflows is that much larger beside it.
    """
    return gamma(2, P.softmax.u) * peak


def underflow_beside_normaliser(at: Rows, P: Precision) -> ndarray:
    """Bound what the underflow of one weight is beside their sum: eta e^shift."""
    with np.errstate(all="ignore"):
        return P.softmax.eta * np.exp(shared_shift(np.abs(at.m), P))


def exponential_underflow(at: Rows, P: Precision) -> ndarray:
    """
    Bound what an exponential that errs by exp_ulps ulps costs a weight below the smallest normal
    number, beyond the one rounding min(eta e^shift, p): an ulp is 2 eta there, whatever the size,
    so (2 exp_ulps - 1) min(eta e^shift, p). What rounds to 0 comes out as 0, hence p; where
    subnormal numbers are flushed there is no such ulp.
    """
    beyond = 0.0 if P.softmax.ftz else max(2 * P.exp_ulps - 1, 0.0)
    low = 2 * P.softmax.tiny * np.exp(shared_shift(np.abs(at.m), P))
    if not beyond or at.least >= low.max(initial=0.0):
        return np.zeros(())
    vanishing = at.p < low
    eta = underflow_beside_normaliser(at, P)
    return np.where(vanishing, beyond * np.minimum(eta, at.p), 0.0)


def _admitted_error(at: Rows, Es: ndarray, size: ndarray, P: Precision) -> ndarray:
    """
    Es, zero at hidden keys, inf at visible ones that are no numbers or leave the score format where
    it matters.
    """
    over = ~(size + Es <= P.score.max)
    if at.lost is not None:
        over |= at.lost
    if over.any():
        harmless = (
            (at.s + Es < at.m - NEGLIGIBLE)
            if at.lost is None
            else (at.s + Es < at.m - NEGLIGIBLE) & ~at.lost
        )
        Es = np.where(over & ~harmless, np.inf, Es)
    return Es if at.visible is None else np.where(at.visible, Es, 0.0)


def rescaled_sum_error(n: int, P: Precision) -> float:
    """
    R = (1 + acc(n)) (1 + g(K+2, u_acc)) - 1: the relative error of a sum over n keys in K rescaled
    blocks.
    """
    return (1 + accumulation_error(n, P)) * (1 + gamma(ceil(n / P.block) + 2, P.acc.u)) - 1


def normaliser_error(at: Rows, E: ndarray, P: Precision) -> float | ndarray:
    """
    Compute rl = R + g(3, u) + n eta e^shift: the normaliser and the division, E the errors of the
    exponents; g(2, u_step) + n eta_step where sum and quotient are stored. Where partial results
    are merged through exp(lse_b - lse), what the merge weights lose besides, nothing being divided
    by their sum as it came out: e^x - 1 with

        x = g(4, u) (1 + |lse| + log n) - 2 log(1 - 2 u exp_ulps) + :func:`stored_lse`

    since sum_b w_b |lse_b| <= |lse| + log n, the w_b summing to one, and both the weights and the
    sum in lse are made of exponentials. The same holds of weights exp(s - lse), parts of one key.
    """
    n, u = at.s.shape[-1], P.softmax.u
    rl = rescaled_sum_error(n, P) + gamma(3, u) + gamma(2, P.unit_of_steps) + n * P.eta_of_steps
    rl = rl + n * underflow_beside_normaliser(at, P)
    if not P.by_lse:
        return rl
    merge = gamma(4, u) * (1 + np.abs(at.m + np.log(at.norm)) + log(n)) + stored_lse(at, E, P)
    return rl + np.expm1(merge + 2 * exponential_error(P))


def stored_lse(at: Rows, E: ndarray, P: Precision) -> ndarray | float:
    """
    Bound how far the sum of the weights exp(s - lse) is from 1, as an exponent, where each step is
    stored: lse, the logarithm and the sum in it, exponentials and s - m in that, s - lse;

        g(1, u_step) (|lse| + max E + 3 log n + 2)

    since a weighted mean of s - m, and of s - lse, is the entropy at most, and that log n.
    """
    if not P.unit_of_steps:
        return 0.0
    lse = np.abs(at.m + np.log(at.norm)) + E.max(-1, keepdims=True)
    return np.asarray(gamma(1, P.unit_of_steps) * (lse + 3 * log(at.s.shape[-1]) + 2))


def exponential_error(P: Precision) -> float:
    """Bound what an exponential's own error amounts to in its exponent: -log(1 - 2 u exp_ulps)."""
    error = 2 * P.softmax.u * P.exp_ulps
    return -log1p(-error) if error < 1 else inf


def weight_increase(at: Rows, E: ndarray) -> ndarray:
    """
    Compute w (e^E - 1), by whichever of its two forms neither cancels nor multiplies zero by
    infinity.
    """
    if E.max(initial=0.0) < 1:
        return at.w * np.expm1(E)
    return np.where(E < 1, at.w * np.expm1(np.minimum(E, 1.0)), np.exp(at.d + E) - at.w)


def weight_displacement(at: Rows, E: ndarray) -> ndarray:
    """
    Compute how far a softmax weight moves when every exponent moves by at most E, exactly.

    With a = p (e^E - 1), b = p (1 - e^-E), A = sum a, B = sum b, the worst case over all
    |e_i| <= E_i is

        |dp_j| <= max( (a_j (1-p_j) + p_j (B-b_j)) / (1 + a_j - (B-b_j)),
                       (b_j (1-p_j) + p_j (A-a_j)) / (1 - b_j + A-a_j) )

    reached with e_j against all others; it never exceeds max(p, 1-p).
    """
    p = at.p
    a, b, low = weight_increase(at, E) / at.norm, -p * np.expm1(-E), p * np.exp(-E)
    rest_p, rest_a, rest_b, rest_low = sum_of_others(np.stack([p, a, b, low]))
    # 1 + a - (B - b) and 1 - b + A - a, as sums of what they are made of
    up = (a * rest_p + p * rest_b) / (p + a + rest_low)
    down = (b * rest_p + p * rest_a) / (low + rest_p + rest_a)
    return np.fmin(np.maximum(up, down), np.maximum(p, rest_p))


def sum_of_others(x: ndarray) -> ndarray:
    """
    Compute the sum of all other entries of the row, from both sides: the whole sum minus one entry
    cancels where that one dominates.
    """
    rest = np.zeros_like(x)
    rest[..., 1:] += np.cumsum(x[..., :-1], -1)
    rest[..., :-1] += np.cumsum(x[..., :0:-1], -1)[..., ::-1]
    return rest


def probability_error(at: Rows, Es: ndarray | None, P: Precision) -> ndarray:
    """
    Bound the error of the softmax weights, before they are stored: `displaced` by the exponents'
    errors; then sum, normaliser and division act on p + |dp|, and a weight in the underflow range
    of exp loses at most min(eta e^shift, p), and `exponential_underflow`.
    """
    E = exponent_error(at, Es, P)
    p, moved = at.p, weight_displacement(at, E)
    relative = rescaled_sum_error(at.s.shape[-1], P) + normaliser_error(at, E, P)
    eta = underflow_beside_normaliser(at, P)
    vanishing = p < 2 * P.softmax.tiny * (eta / P.softmax.eta)
    grown = moved + relative * (p + moved) + np.where(vanishing, np.minimum(eta, p), 0.0)
    return zero_where_hidden(
        at, grown + exponential_underflow(at, P) + stored_underflow(at, E, P), E
    )


def stored_underflow(at: Rows, E: ndarray, P: Precision) -> ndarray:
    """
    Bound what a weight loses where its exponential, and itself, are stored below the normal
    numbers; E the error of the exponent, S the stored sum, which is 1 at least:

        min(2 eta_step, 3 w e^E)

    The exponential loses eta_step, or itself if that is less, w e^E; what is left of it is 2 w e^E
    at most, divided by S, and so is what the quotient loses.
    """
    if P.step is None or not P.unit_of_steps:
        return np.zeros(())
    most = np.fmin(2 * P.step.eta, 3 * (at.w + weight_increase(at, E)))
    return np.where(at.p < 2 * P.step.tiny, most, 0.0)


def zero_where_hidden(at: Rows, E: ndarray, exponent: ndarray | None = None) -> ndarray:
    """
    Give E, exactly zero at hidden keys (and so in a row that sees none). A row whose exponents left
    the domain is inf: all of it, but where a score that it sees is no number the hidden keys stay
    at zero, for what only that row sees may reach nothing else.
    """
    E = E if at.visible is None else np.where(at.visible, E, 0.0)
    if exponent is None or np.isfinite(exponent.sum()):
        return E
    beyond = ~np.isfinite(exponent).all(-1, keepdims=True)
    if at.visible is not None and at.lost is not None:
        beyond = beyond & (at.visible | ~(at.visible & at.lost).any(-1, keepdims=True))
    return np.where(beyond, np.inf, E)
