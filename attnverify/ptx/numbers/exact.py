"""Sums and products with sums that round once, in every mode."""

import math
from fractions import Fraction

import numpy as np

from attnverify.ptx.kinds import Array
from attnverify.ptx.numbers.formats import F32, Format, rounded

__all__ = ["directed_sum", "fused", "fused_f32", "fused_f64", "odd_sum"]

TIE = np.uint64(1 << 28)
BELOW = np.uint64((1 << 29) - 1)
"""The bits of a float64 that a float32 has no room for; alone the first of them is set in a tie."""


def fused_f32(x: Array, y: Array, z: Array) -> Array:
    """x y + z of float32 numbers, rounded once to nearest."""
    total = x.astype(np.float64) * y + z
    found = total.astype(np.float32)
    # Rounding twice differs from rounding once only where the first result is a tie of the second.
    ties = np.count_nonzero((total.view(np.uint64) & BELOW) == TIE)
    if ties or np.count_nonzero(np.abs(found) <= np.float32(F32.tiny)) > np.count_nonzero(
        total == 0
    ):
        return fused(x, y, z, F32).astype(np.float32)
    return found


def fused(x: Array, y: Array, z: Array, to: Format, mode: str = "rn") -> Array:
    """x y + z of numbers of at most 24 digits, rounded once; float64."""
    return directed_sum(x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64), to, mode)


def directed_sum(x: Array, y: Array, to: Format, mode: str) -> Array:
    """x + y rounded once; rounded down, a number and its opposite give -0."""
    found = rounded(odd_sum(x, y), to, mode)
    if mode == "rm":
        found = np.where((found == 0) & (x == -y) & (np.signbit(x) != np.signbit(y)), -0.0, found)
    return found


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


def fused_f64(x: Array, y: Array, z: Array) -> Array:
    """
    x y + z of float64 numbers, rounded once to nearest, by exact fractions where numbers are
    finite.
    """
    quick = np.atleast_1d(x * y + z)
    x, y, z = (np.broadcast_to(part, quick.shape) for part in (x, y, z))
    plain = np.isfinite(x) & np.isfinite(y) & np.isfinite(z) & ((x != 0) & (y != 0))
    for place in np.flatnonzero(plain):
        exact = Fraction(float(x[place])) * Fraction(float(y[place])) + Fraction(float(z[place]))
        quick[place] = to_float(exact, float(quick[place]))
    return quick


def to_float(exact: Fraction, sign: float) -> float:
    """Round to the nearest float64; a zero takes its sign from the quick result."""
    if exact == 0:
        return sign * 0.0
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return math.copysign(math.inf, exact)
