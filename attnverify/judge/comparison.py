"""
The one comparison: bit for bit, or ``abs(actual - expected) <= bound`` element by element, written
so that NaN fails.
"""

from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from numpy import ndarray

ROUNDING = 1 + 1e-9
"""The bound itself is computed in float64."""
TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class Comparison:
    """
    How an array compares with the specification.

    wrong   elements out of bound; total elements in all; outside: elements whose bound is infinite
            (an intermediate of the declared arithmetic may overflow there), which are not judged
    budget  the worst error / bound; rms its root mean square; index its place, with both values and
            the bound there
    arrays  what was compared, for a picture of it: actual, expected, error / bound, and which
            elements are within
    """

    wrong: int
    total: int
    outside: int
    budget: float
    rms: float
    arrays: tuple[ndarray, ndarray, ndarray, ndarray] = field(compare=False, repr=False)
    bounds: ndarray = field(compare=False, repr=False)
    worst: int = 0

    @property
    def index(self) -> tuple[int, ...]:
        return (
            tuple(int(i) for i in np.unravel_index(self.worst, self.arrays[2].shape))
            if self.total
            else ()
        )

    @property
    def actual(self) -> float:
        return float(self.arrays[0][self.index]) if self.total else 0.0

    @property
    def expected(self) -> float:
        return float(self.arrays[1][self.index]) if self.total else 0.0

    @property
    def bound(self) -> float:
        return (
            float(np.broadcast_to(self.bounds, self.arrays[2].shape)[self.index])
            if self.total
            else 0.0
        )

    @property
    def passed(self) -> bool:
        return self.wrong == 0

    def __str__(self) -> str:
        share = "exactly" if self.bound == 0 else f"bound {self.bound:.3g}"
        if self.bound and np.isfinite(self.budget):
            share += f", {self.budget:.3g}x of it (rms {min(self.rms, 1e9):.2g}x)"
        got, wanted = format_apart(self.actual, self.expected)
        return (
            f"{self.wrong} of {self.total} elements differ from the specification; "
            f"worst at {self.index}: got {got}, expected {wanted}, {share}"
        )


def format_apart(one: float, other: float) -> tuple[str, str]:
    """Write two numbers with nine digits, and with as many more as tell them apart."""
    both = one, other
    for digits in range(9, 18):
        first, second = (f"{x:.{digits}g}" for x in both)
        if first != second or one == other:
            break
    return first, second


def format_budget(share: float) -> str:
    """
    Write ``0.31x``, and ``0.9994x`` of what is near 1; NaN, and what is not exact where it must be,
    is beyond any multiple.
    """
    digits = 2 if abs(share - 1) >= 0.005 else 6
    return f"{share:.{digits}g}x" if np.isfinite(share) else "infinite"


def compare(
    actual: ndarray, expected: ndarray, bound: ndarray | None, largest: float = np.inf
) -> Comparison:
    """
    Compare two float64 (or bool) arrays of one shape.

    ``bound`` None asks for the same bits: the sign of zero counts, and NaN equals NaN. Otherwise
    the classes of NaN and infinity must agree and the error stay within the bound; an infinity
    where the specification is finite is accepted only where expected + bound reaches ``largest``,
    the largest number of the dtype.
    """
    with np.errstate(all="ignore"):
        if bound is None:
            return compare_exactly(actual, expected)
        error = np.abs(actual - expected)
        within = error <= bound * ROUNDING
        if np.isfinite(bound.sum()) and np.isfinite(error.sum()):  # nearly always
            ratio = error / np.maximum(bound, TINY)
            if within.all():
                return summarise_comparison(actual, expected, bound, within, ratio, 0, 0)
            ratio = np.where(within, ratio, np.maximum(ratio, 1.0))
            return summarise_comparison(actual, expected, bound, within, ratio, 0)
        same_class = (np.isnan(actual) & np.isnan(expected)) | (
            np.isinf(expected) & (actual == expected)
        )
        overflowed = (
            np.isinf(actual)
            & (np.sign(actual) == np.sign(expected))
            & (np.abs(expected) + bound >= largest)
        )
        outside = np.isinf(bound) & ~np.isnan(expected)
        right = (
            np.where(np.isfinite(actual) & np.isfinite(expected), within, same_class | overflowed)
            | outside
        )
        ratio = np.where(
            right & (same_class | overflowed | outside), 0.0, error / np.maximum(bound, TINY)
        )
        ratio = np.where(right, ratio, np.where(np.isnan(ratio), np.inf, np.maximum(ratio, 1.0)))
    return summarise_comparison(actual, expected, bound, right, ratio, int(outside.sum()))


def is_within(actual: ndarray, expected: ndarray, bound: ndarray | None) -> bool:
    """Tell whether :func:`compare` passes: at once where an error is plainly beyond its bound."""
    with np.errstate(all="ignore"):
        if bound is not None and (np.abs(actual - expected) > bound * ROUNDING).any():
            return False
    return compare(actual, expected, bound).passed


def compare_exactly(actual: ndarray, expected: ndarray) -> Comparison:
    if actual.dtype == bool or expected.dtype == bool:
        right = actual == expected
    else:
        same = (actual == expected) & (np.signbit(actual) == np.signbit(expected))
        right = same | (np.isnan(actual) & np.isnan(expected))
    return summarise_comparison(
        actual, expected, np.zeros(expected.shape), right, np.where(right, 0.0, np.inf), 0
    )


def summarise_comparison(
    actual: ndarray,
    expected: ndarray,
    bound: ndarray,
    right: ndarray,
    ratio: ndarray,
    outside: int,
    wrong: int | None = None,
) -> Comparison:
    wrong = int(ratio.size - np.count_nonzero(right)) if wrong is None else wrong
    arrays = actual, expected, ratio, right
    if not ratio.size:
        return Comparison(0, 0, 0, 0.0, 0.0, arrays, bound)
    worst = int((np.where(right, -1.0, ratio) if wrong else ratio).argmax())
    capped = (np.minimum(ratio, 1e150) if wrong else ratio).ravel()
    rms = sqrt(float(capped @ capped) / capped.size)
    return Comparison(
        wrong, ratio.size, outside, float(ratio.flat[worst]), rms, arrays, bound, worst
    )


def largest_difference(one: ndarray, other: ndarray) -> float:
    """How far two arrays of one shape, which has elements, are apart; NaN where either holds it."""
    with np.errstate(all="ignore"):
        return float(np.abs(one - other).max())
