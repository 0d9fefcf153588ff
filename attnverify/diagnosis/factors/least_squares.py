"""
One factor of a function, fitted to observations by a grid of powers of two and Gauss-Newton steps,
with the yardstick of the diagnosis as unit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.candidates import TWO_ERRORS
from attnverify.diagnosis.cause import Explanation
from attnverify.judge.observation import Observation, tolerance
from attnverify.precision import FORMATS

GRID = tuple(2.0**k for k in range(-6, 7))
ROUNDINGS = 8
"""A factor that is no further from 1 than so many roundings may be made of them."""
SHOWN = 5e-5
"""So far from 1 must a factor be to be told in hundredths of a per cent."""
DIGITS = range(1, 8)
FARTHEST = 1e6
NEAR = 0.02
"""How far a fitted factor may be from a power of a size, relatively, for the power to be tried."""


SHARES: dict[str, Callable[[float], float]] = {
    "1 - p": lambda p: 1 - p,
    "1 / (1 - p)": lambda p: 1 / (1 - p),
    "p": lambda p: p,
    "p (1 - p)": lambda p: p * (1 - p),
    "p / (1 - p)": lambda p: p / (1 - p),
    "(1 - p)^2": lambda p: (1 - p) ** 2,
    "1 / (1 - p)^2": lambda p: (1 - p) ** -2,
}
"""What kernels make of the share ``p`` that dropout drops."""


@dataclass(frozen=True)
class FactorModel:
    """The function of a factor that an observation is held against."""

    observation: Observation
    of: Callable[[Any], Any]

    def residual(self, g: float) -> ndarray:
        """
        Outputs minus the function, in units of the yardstick; as large as can be where it has no
        answer.
        """
        seen = self.observation
        if (answer := self.answer(g)) is None:
            return np.full(sum(a.size for a in seen.actual), FARTHEST)
        others = seen.asked_for(answer)
        parts = [
            unit(a, o, b, seen.dtype)
            for a, o, b in zip(seen.actual, others, seen.bounds, strict=True)
        ]
        return np.concatenate([part.ravel() for part in parts])

    def fits(self, g: float | ndarray) -> bool:
        answer = self.answer(g)
        return answer is not None and self.observation.distance(answer) <= 1

    def explains(self, g: float) -> bool:
        """Tell whether it fits, or is far nearer than the specification."""
        answer, seen = self.answer(g), self.observation
        far = np.inf if answer is None else seen.distance(answer)
        return far <= 1 or is_far_nearer(seen, lambda: answer, far)

    def answer(self, g: Any) -> Any:
        """What the function gives, None where it raises: somebody's own may, of other numbers."""
        try:
            with np.errstate(all="ignore"):
                return self.of(g)
        except Exception:
            return None


def unit(actual: ndarray, other: ndarray, bound: ndarray | None, dtype: str) -> ndarray:
    """Errors in units of the yardstick; as large as can be where only the other is NaN."""
    with np.errstate(all="ignore"):
        size = tolerance(bound, actual, dtype) if bound is not None else np.ones(actual.shape)
        error: ndarray = np.clip((actual - other) / np.maximum(size, 1e-300), -FARTHEST, FARTHEST)
        lost = np.isnan(other) & ~np.isnan(actual)
        return np.where(lost, FARTHEST, np.where(np.isfinite(error), error, 0.0))


FAR = 1000.0
"""So much nearer must one be that is beyond the bound, which is that of the specification's numbers
and not of its own."""
NEARER = 100.0
"""So much nearer must such a one be in each number that is beyond the bound."""


def is_far_nearer(seen: Observation, answer: Callable[[], Any], ratio: float) -> bool:
    """
    Whether an answer beyond the bound, by this ratio, is far nearer than the specification in every
    number: its own, such as scores of -10000, may round to more than the bound.
    """
    if ratio > min(seen.law / FAR, FAR):
        return False
    parts = zip(seen.actual, seen.expected, seen.asked_for(answer()), seen.bounds, strict=True)
    off = (
        [np.abs(unit(actual, other, bound, seen.dtype)) for other in (own, law)]
        for actual, law, own, bound in parts
    )
    return all(bool((own <= np.maximum(TWO_ERRORS, law / NEARER)).all()) for own, law in off)


def fit_common_factor(
    wrong: Sequence[FactorModel], all_of_them: Sequence[FactorModel]
) -> Explanation | None:
    """Fit the factor, if the share of a draw, one number or a power of a size explains all."""
    if share := share_of_draw(wrong, all_of_them):
        return share
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
    words = say.OFF_BY_POWER_OF_SIZE.format(letter=letter, exponent=exponent)
    return Explanation.of(words) if explains else None


def share_of_draw(
    wrong: Sequence[FactorModel], all_of_them: Sequence[FactorModel]
) -> Explanation | None:
    """
    Name a factor that is made of the share which a draw drops, where no other call is wrong. Of one
    share alone it may be any other number.
    """
    shares = {float(fit.observation.inputs.get("p") or 0.0) for fit in wrong}
    given = [(fit, float(fit.observation.inputs.get("p") or 0.0)) for fit in all_of_them]
    for name, of in SHARES.items() if len(shares) > 1 and 0.0 not in shares else ():
        if all(fit.fits(of(p) if p else 1.0) for fit, p in given):
            return Explanation.of(say.OFF_BY_SHARE.format(share=name))
    return None


def is_no_rounding(g: float, dtype: str) -> bool:
    """Whether a factor is further from 1 than roundings of the dtype explain."""
    return abs(g - 1) > max(SHOWN, ROUNDINGS * FORMATS[dtype].u)


def fit_least_squares(
    fits: Sequence[FactorModel], starts: Sequence[float] = (*GRID, 0.0, -1.0)
) -> float:
    """
    Fit the factor with the smallest sum of squares: the best of the starts, then Gauss-Newton
    steps.
    """

    start = min(
        starts,
        key=lambda g: sum(float(np.minimum(np.abs(fit.residual(g)), 1e3).sum()) for fit in fits),
    )
    return gauss_newton(fits, start) if start else start


def fewest_digits(g: float, explains: Callable[[float], bool]) -> float | None:
    """Return a fitted number with as few digits as explain what was seen, if seven do."""
    rounded = (float(f"{g:.{digits}g}") for digits in DIGITS)
    return next((each for each in rounded if explains(each)), None)


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
        side = say.LOW if g < 1 else say.HIGH
        return Explanation(side, say.PER_CENT.format(share=abs(g - 1), side=side))
    if g == 0:
        return Explanation(say.OFF, say.TIMES_ZERO)
    near = round(2 * log2(abs(g))) / 2
    if abs(abs(g) / 2**near - 1) >= 0.01:
        return Explanation(say.OFF, say.OFF_BY.format(factor=g))
    sign = "-" if g < 0 else ""
    words = say.OFF_BY_POWER_OF_TWO.format(factor=g, sign=sign, exponent=near)
    return Explanation(say.OFF, words)
