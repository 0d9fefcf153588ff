"""Operations that round once: products with sums, and operations in the directed modes."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from attnverify.ptx.kinds import Array
from attnverify.ptx.numbers.formats import F32, Format, rounded

__all__ = ["fused", "fused_f32", "fused_f64", "once"]

TIE = np.uint64(1 << 28)
BELOW = np.uint64((1 << 29) - 1)
"""The bits of a float64 that a float32 has no room for; alone the first of them is set in a tie."""


def fused_f32(x: Array, y: Array, z: Array) -> Array:
    """x y + z of float32 numbers, rounded once to nearest."""
    total = x.astype(np.float64) * y + z
    found = total.astype(np.float32)
    # Rounding twice differs from rounding once only where the first result is a tie of the second.
    ties = np.count_nonzero((total.view(np.uint64) & BELOW) == TIE)
    if ties or np.count_nonzero(np.abs(found) <= np.float32(F32.tiny)) > np.count_nonzero(total == 0):
        return fused(x, y, z, F32).astype(np.float32)
    return found


def fused(x: Array, y: Array, z: Array, to: Format, mode: str = "rn") -> Array:
    """x y + z of numbers of at most 24 digits, rounded once; float64."""
    product = x.astype(np.float64) * y.astype(np.float64)
    return rounded(odd_sum(product, z.astype(np.float64)), to, mode)


def odd_sum(x: Array, y: Array) -> Array:
    """x + y rounded to odd: enough for a second rounding to fewer digits to be the only one."""
    total = x + y
    part = total - x
    error = (x - (total - part)) + (y - part)
    bits = total.view(np.int64)
    even = (bits & 1) == 0
    step = np.where((error > 0) == (total > 0), 1, -1)
    inexact = np.isfinite(total) & (error != 0) & even
    return np.where(inexact, bits + step, bits).view(np.float64)


def once(operation: Callable[[Fraction, Fraction], Fraction], x: Array, y: Array, quick: Array, to: Format, mode: str) -> Array:
    """
    A quotient or root of float32 numbers in a directed mode; ``quick`` is its value to float64.

    53 digits are within one part in 2^53 of the exact result, so only results that lie that close to a float32 need a second look.
    """
    found = rounded(quick, to, mode)
    near = np.isfinite(quick) & (quick != 0) & (np.abs(quick - rounded(quick, to)) <= np.abs(quick) * 2.0**-51)
    for place in np.flatnonzero(near):
        side = operation(Fraction(float(x.flat[place])), Fraction(float(y.flat[place])))
        found.flat[place] = nudged(float(quick.flat[place]), side, to, mode)
    return found


def nudged(quick: float, side: Fraction, to: Format, mode: str) -> float:
    """The rounding of a number next to a float32, when the sign of (exact - that float32) is known."""
    nearest = float(rounded(np.array([quick]), to)[0])
    shifted = nearest + math.copysign(abs(nearest) * 2.0**-40, side) if side else nearest
    return float(rounded(np.array([shifted]), to, mode)[0])


def fused_f64(x: Array, y: Array, z: Array) -> Array:
    """x y + z of float64 numbers, rounded once to nearest, by exact fractions where numbers are finite."""
    quick = np.atleast_1d(x * y + z)
    x, y, z = (np.broadcast_to(part, quick.shape) for part in (x, y, z))
    plain = np.isfinite(x) & np.isfinite(y) & np.isfinite(z) & ((x != 0) & (y != 0))
    for place in np.flatnonzero(plain):
        exact = Fraction(float(x[place])) * Fraction(float(y[place])) + Fraction(float(z[place]))
        quick[place] = to_float(exact, float(quick[place]))
    return quick


def to_float(exact: Fraction, sign: float) -> float:
    """The nearest float64; a zero takes its sign from the quick result."""
    if exact == 0:
        return sign * 0.0
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return math.copysign(math.inf, exact)
