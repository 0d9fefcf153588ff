"""
Fits: a factor that explains a failure which no convention and no known fault does.

One stage is multiplied by a factor; the factor nearest to the outputs is found by a grid of powers
of two and Gauss-Newton steps, with the yardstick of the diagnosis as unit. It is told if all
observations are then within the yardstick: one number for all of them, a power of a size, or a
slope of its own for each head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.diagnosis.cause import Explanation
from attnverify.diagnosis.localize import output_names
from attnverify.judge.observation import Observation, arrays, tolerance
from attnverify.precision import FORMATS
from attnverify.reference.staged_attention import StagedAttention, evaluate, spec_stages

Gained = Callable[[StagedAttention, Any], StagedAttention]
GRID = tuple(2.0**k for k in range(-6, 7))
MOST = 4
"""As many wrong observations are fitted at a time."""

CLEARLY = 4.0
"""So many bounds at least must an error be for a factor to be looked for."""

ENOUGH = 4
"""So many numbers at least must be wrong: some factor explains any single one."""
ROUNDINGS = 8
"""A factor that is no further from 1 than so many roundings may be made of them."""
SHOWN = 5e-5
"""So far from 1 must a factor be to be told in hundredths of a per cent."""

NEAR = 0.02
"""How far a fitted factor may be from a power of a size, relatively, for the power to be tried."""

STAGE_FACTORS: dict[str, tuple[Callable[[StagedAttention], bool], Gained]] = {
    "the scale is": (lambda s: True, lambda s, g: replace(s, scale=s.scale * g)),
    "the slopes are": (
        lambda s: s.slopes is not None,
        lambda s, g: replace(s, slopes=s.slopes * g),
    ),
    "the position scores are": (lambda s: s.place is not None, lambda s, g: replace(s, position=g)),
    "the float mask is": (lambda s: s.bias is not None, lambda s, g: replace(s, bias=s.bias * g)),
    "the exponent is": (
        lambda s: "score" not in s.operation.name,
        lambda s, g: replace(s, exponent=g),
    ),
    "the kept weights are": (
        lambda s: s.inputs.get("keep") is not None,
        lambda s, g: replace(s, kept=s.kept * g),
    ),
}


@dataclass(frozen=True)
class FactorModel:
    """The function of a factor that an observation is held against."""

    observation: Observation
    of: Callable[[Any], Any]

    def residual(self, g: float) -> ndarray:
        """Outputs minus the function, in units of the yardstick."""
        seen = self.observation
        others = arrays(self.of(g))
        parts = [
            unit(a, o, b, seen.dtype)
            for a, o, b in zip(seen.actual, others, seen.bounds, strict=True)
        ]
        return np.concatenate([part.ravel() for part in parts])

    def fits(self, g: float | ndarray) -> bool:
        return self.observation.distance(self.of(g)) <= 1


def unit(actual: ndarray, other: ndarray, bound: ndarray | None, dtype: str) -> ndarray:
    with np.errstate(all="ignore"):
        size = tolerance(bound, actual, dtype) if bound is not None else np.ones(actual.shape)
        error: ndarray = np.clip((actual - other) / np.maximum(size, 1e-300), -1e6, 1e6)
        return np.where(np.isfinite(error), error, 0.0)


def fit_factor(operation: Operation, seen: Sequence[Observation]) -> Explanation | None:
    """
    Fit the factor that explains all observations; None also where the errors are so small that
    roundings may explain them.
    """
    wrong = [observation for observation in seen if observation.wrong][:MOST]
    if any(not o.bounds or o.bounds[0] is None for o in wrong) or any(
        np.isinf(observation.ratio) for observation in wrong
    ):
        return None
    if max((o.distance(o.expected) for o in wrong), default=0.0) < CLEARLY:
        return None
    if sum(count_wrong_numbers(o) for o in wrong) < ENOUGH:
        return None
    of_stage = (
        slopes_of_heads(wrong, seen) or fit_stage_factor(wrong, seen)
        if operation.is_staged
        else None
    )
    return of_stage or whole_output(wrong, seen) or each_output(wrong)


def count_wrong_numbers(o: Observation) -> int:
    """How many elements of the outputs are beyond their bounds."""
    with np.errstate(all="ignore"):
        return sum(
            int(np.count_nonzero(~(np.abs(a - e) <= b)))
            for a, e, b in zip(o.actual, o.expected, o.bounds, strict=True)
            if b is not None and a.shape == e.shape
        )


def fit_stage_factor(
    wrong: Sequence[Observation], seen: Sequence[Observation]
) -> Explanation | None:
    """One stage with a factor, the same for all or a power of a size."""
    for words, (applies, change) in STAGE_FACTORS.items():
        if any(applies(stages_of(o)) for o in wrong):
            factor = fit_common_factor(
                [fit_of(o, applies, change) for o in wrong],
                [fit_of(o, applies, change) for o in seen],
            )
            if factor:
                return Explanation(f"{words} {factor.name}", f"{words} {factor.words}")
    return None


def stages_of(o: Observation) -> StagedAttention:
    return spec_stages(CATALOGUE[o.recipe.operation], o.inputs, o.dtype)


def fit_of(
    o: Observation, applies: Callable[[StagedAttention], bool], change: Gained
) -> FactorModel:
    law = stages_of(o)
    return FactorModel(o, lambda g: evaluate(change(law, g) if applies(law) else law))


def whole_output(wrong: Sequence[Observation], seen: Sequence[Observation]) -> Explanation | None:
    factor = fit_common_factor(
        [scaled_output_model(o) for o in wrong], [scaled_output_model(o) for o in seen]
    )
    if factor is None:
        return None
    return Explanation(f"every output is {factor.name}", f"every output is {factor.words}")


def scaled_output_model(o: Observation) -> FactorModel:
    return FactorModel(o, lambda g: [g * e for e in o.expected])


def each_output(wrong: Sequence[Observation]) -> Explanation | None:
    """
    Return a factor of its own for each output that is wrong: of gradients some are often right, and
    some nothing but zeros.
    """
    most = max(wrong, key=lambda o: len(o.actual), default=None)
    if most is None or len(most.actual) < 2:
        return None
    names, told, zero = output_names(most), list[str](), list[str]()
    for number in range(len(most.actual)):
        parts = [output_of(o, number) for o in wrong if number < len(o.actual)]
        off = [part for part in parts if part.distance(part.expected) > 1]
        if not off:
            continue
        if not any(part.actual[0].any() for part in off):
            zero.append(names[number])
            continue
        models = [scaled_output_model(part) for part in parts]
        factor = fit_common_factor([scaled_output_model(part) for part in off], models)
        if factor is None:
            return None
        told.append(f"{names[number]} is {factor.words}")
    if not told and not zero:
        return None
    others = len(most.actual) - len(told) - len(zero)
    told = [*([describe_zeros(zero)] if zero else []), *told]
    words = "; ".join(told) + ("; the others are right" if others else "")
    return Explanation(words, words)


def describe_zeros(names: Sequence[str]) -> str:
    """Outputs that are nothing but zeros: ``no gradient reaches query and key``."""
    inputs = [name.removeprefix("the gradient by ") for name in names]
    if all(name != short for name, short in zip(names, inputs, strict=True)):
        return f"no gradient reaches {enumerate_names(inputs)}: 0 everywhere"
    return f"{enumerate_names(names)} {'is' if len(names) == 1 else 'are'} 0 everywhere"


def enumerate_names(names: Sequence[str]) -> str:
    """``query``, ``query and key``, ``query, key and mask``"""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def output_of(o: Observation, number: int) -> Observation:
    """One output of an observation."""
    one = slice(number, number + 1)
    return replace(o, actual=o.actual[one], expected=o.expected[one], bounds=o.bounds[one])


def fit_common_factor(
    wrong: Sequence[FactorModel], all_of_them: Sequence[FactorModel]
) -> Explanation | None:
    """Fit the factor, if one number or a power of a size explains everything."""
    g = fit_least_squares(wrong)
    if all(fit.fits(g) for fit in all_of_them):
        return factor_in_words(g) if is_no_rounding(g, wrong[0].observation.dtype) else None
    each = [fit_least_squares([fit]) for fit in wrong]
    if not all(fit.fits(g) for fit, g in zip(wrong, each, strict=True)):
        return None
    power = power_of_size([fit.observation.recipe.sizes for fit in wrong], each)
    if power is None:
        return None
    letter, exponent = power
    explains = all(
        fit.fits(fit.observation.recipe.sizes.get(letter, 1) ** exponent) for fit in all_of_them
    )
    words = f"off by a factor of {letter}^{exponent:g}"
    return Explanation(words, words) if explains else None


def is_no_rounding(g: float, dtype: str) -> bool:
    """Whether a factor is further from 1 than roundings of the dtype explain."""
    return abs(g - 1) > max(SHOWN, ROUNDINGS * FORMATS[dtype].u)


def fit_least_squares(fits: Sequence[FactorModel]) -> float:
    """
    Fit the factor with the smallest sum of squares: the best of the grid, then Gauss-Newton steps.
    """

    def cost(g: float) -> float:
        return sum(float(np.minimum(np.abs(fit.residual(g)), 1e3).sum()) for fit in fits)

    start = min((*GRID, 0.0, -1.0), key=cost)
    return gauss_newton(fits, start) if start else start


def gauss_newton(fits: Sequence[FactorModel], g: float) -> float:
    for _ in range(8):
        h = 1e-5 * abs(g)
        above, below = (np.concatenate([fit.residual(x) for fit in fits]) for x in (g + h, g - h))
        slope, here = (above - below) / (2 * h), (above + below) / 2
        used = np.abs(here) < 1e5  # what was cut off does not move
        step = float(slope[used] @ here[used]) / max(float(slope[used] @ slope[used]), 1e-300)
        g -= float(np.clip(step, -abs(g) / 2, abs(g) / 2))
    return g


def power_of_size(
    sizes: Sequence[dict[str, int]], factors: Sequence[float]
) -> tuple[str, float] | None:
    """Return the letter and exponent that all factors are powers of."""
    for letter in ("D", "H", "M", "N", "E", "B", "A", "F"):
        for exponent in (0.5, -0.5, 1.0, -1.0, 0.25, -0.25):
            powers = [float(size.get(letter, 1)) ** exponent for size in sizes]
            near = all(abs(g / power - 1) < NEAR for g, power in zip(factors, powers, strict=True))
            if near and len(set(powers)) > 1:
                return letter, exponent
    return None


def factor_in_words(g: float) -> Explanation:
    if abs(g - 1) < 0.1:
        side = "low" if g < 1 else "high"
        return Explanation(side, f"{abs(g - 1):.2%} {side}")
    near = round(2 * log2(abs(g))) / 2 if g else None
    power = (
        f" ({'-' if g < 0 else ''}2^{near:g})"
        if near is not None and abs(abs(g) / 2**near - 1) < 0.01
        else ""
    )
    return Explanation("off by a factor", f"off by a factor of {g:.4g}{power}")


def slopes_of_heads(
    wrong: Sequence[Observation], seen: Sequence[Observation]
) -> Explanation | None:
    """Return a factor for each head's slope, where the operation has slopes."""
    if stages_of(wrong[0]).slopes is None or wrong[0].recipe.operation.endswith("_grad"):
        return None
    found = [(o, fit_per_head(o)) for o in wrong]
    slopes = STAGE_FACTORS["the slopes are"][1]
    if not all(fit_of(o, lambda s: True, slopes).fits(g) for o, g in found):
        return None
    o, factors = max(found, key=lambda pair: len(pair[1]))
    if np.ptp(factors) < 1e-3:  # one factor for all is not a matter of heads
        return None
    off = [h for h, g in enumerate(factors) if abs(g - 1) > 0.2 * max(abs(factors - 1))]
    told = ", ".join(f"head {h} {factor_in_words(factors[h]).words}" for h in off[:3])
    more = f" and {len(off) - 3} more" if len(off) > 3 else ""
    return Explanation("slopes of some heads", f"slope of {told}{more} (of {len(factors)} heads)")


def fit_per_head(o: Observation) -> ndarray:
    """Fit the factor of each head's slope: heads do not know of each other."""
    law = stages_of(o)

    def head(h: int) -> FactorModel:
        one = (
            replace(o, actual=(o.actual[0][:, h],), bounds=(bound[:, h],))
            if (bound := o.bounds[0]) is not None
            else o
        )
        return FactorModel(
            one,
            lambda g: evaluate(
                replace(law, slopes=np.where(np.arange(len(law.slopes)) == h, g, 1) * law.slopes)
            )[:, h],
        )

    return np.array([fit_least_squares([head(h)]) for h in range(len(law.slopes))])
