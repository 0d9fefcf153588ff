"""Bounds for rotary positions: angles, their cosines and sines, pairs turned by them."""

from dataclasses import dataclass, replace
from math import log

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import (
    accumulation_error,
    gamma,
    rounding_error,
    storage_error,
    sums_format,
    underflow,
    with_overflow,
)
from attnverify.bounds.softmax_rows import Precisions, total
from attnverify.precision import FLOAT32, Precision, at_least_float32

Grads = tuple[ndarray, ...]


@dataclass(frozen=True)
class Turns:
    """
    What pairs turn by, in float64: positions [B 1 N 1], frequencies [R], their angles [B 1 N R];
    the exponent r / R log base of each frequency, None where frequencies are given; the places of
    the first and second channels.
    """

    positions: ndarray
    angle: ndarray
    exponent: ndarray | None
    first: slice
    second: slice

    @property
    def R(self) -> int:
        return int(self.angle.shape[-1])


def turns(
    x: ndarray,
    positions: ndarray,
    pairing: str,
    base: float,
    rotary_dim: int | None,
    frequencies: ndarray | None,
) -> Turns:
    R = (x.shape[-1] if rotary_dim is None else rotary_dim) // 2
    exponent = None if frequencies is not None else np.arange(R) / R * log(base)
    f = frequencies if exponent is None else np.exp(-exponent)
    assert f is not None
    p = positions[:, None, :, None].astype(np.float64)
    halves = pairing == "halves"
    first = slice(0, R) if halves else slice(0, 2 * R, 2)
    second = slice(R, 2 * R) if halves else slice(1, 2 * R, 2)
    return Turns(p, p * f, exponent, first, second)


def angle_error(at: Turns, P: Precision) -> ndarray:
    """
    Bound the error of an angle, formed in `acc` from the exact integer:

        E_f = expm1(g(3, u) e) + g(2, u) + 2 exp_ulps u,    E_x = |x| ((1 + E_f) (1 + g(2, u)) - 1)

    e is the exponent (r / R) log base of the frequency, which takes three roundings, before an exp
    or a power of a few ulps, a reciprocal and a store. The first frequency is 1 in every
    arithmetic; frequencies that are given are exact. The two roundings of the angle are a product
    and a reduction to one turn.
    """
    u, made = P.acc.u, np.zeros(at.R)
    if at.exponent is not None:
        made = np.expm1(gamma(3, u) * np.abs(at.exponent)) + gamma(2, u) + 2 * P.exp_ulps * u
        made = np.where(at.exponent == 0, 0.0, made)
    wide = int(np.abs(at.positions).max(initial=0) > 2.0**P.acc.p)
    relative = (1 + made) * (1 + gamma(2 + wide, u)) - 1
    far = np.maximum(np.abs(at.positions), np.abs(at.angle))
    return with_overflow(np.abs(at.angle) * relative + P.acc.eta * (1 + far), far, P.acc)


def table_errors(at: Turns, P: Precision) -> tuple[ndarray, ndarray]:
    """
    Bound the errors of cosines and sines, kept in `stage`:

        min(2, |sin x| E_x + E_x^2 / 2) + 2 sin_ulps u |cos x|

    and likewise the sine's; an angle of 0 has 1 and 0 in every arithmetic.
    """
    E, u = angle_error(at, P), 2 * P.sin_ulps * P.acc.u
    found = []
    for value, slope in (
        (np.cos(at.angle), np.sin(at.angle)),
        (np.sin(at.angle), np.cos(at.angle)),
    ):
        moved = np.where(np.isinf(E), np.inf, np.minimum(2.0, np.abs(slope) * E + E * E / 2))
        own = moved + u * np.abs(value) + P.acc.eta
        kept = own if P.stage.p == P.acc.p else rounding_error(value, own, P.stage)
        found.append(np.where(at.angle == 0, 0.0, kept))
    return found[0], found[1]


def turned_error(x: ndarray, at: Turns, P: Precision) -> ndarray:
    """
    Bound x_a cos - x_c sin and x_a sin + x_c cos: with E = |x_a| C + |x_c| S of the tables, two
    products and a sum in `stage`, stored. What turns by 0, or not at all, is exact but for
    subnormals that are flushed.
    """
    cos, sin = np.cos(at.angle), np.sin(at.angle)
    C, S = table_errors(at, P)
    a, c = x[..., at.first], x[..., at.second]
    E = flushed(x, P)
    for place, own, other, sign in ((at.first, a, c, -1), (at.second, c, a, 1)):
        y = own * cos + sign * other * sin
        tables = np.abs(own) * C + np.abs(other) * S
        terms = np.abs(own * cos) + np.abs(other * sin) + tables
        made = tables + gamma(1, P.stage.u) * terms + 2 * P.stage.eta
        made = storage_error(y, rounding_error(y, made, P.stage), P.stage, P.storage)
        E[..., place] = np.where(at.angle == 0, E[..., place], made)
    return E


def flushed(x: ndarray, P: Precision) -> ndarray:
    """What is lost of a number that is only copied, or multiplied by 1: subnormals may be 0."""
    flushes = P.storage.ftz or P.stage.ftz or P.acc.ftz
    return np.where(flushes & (np.abs(x) < FLOAT32.tiny), np.abs(x), 0.0)


def rotary_embedding(
    x: ndarray,
    positions: ndarray,
    pairing: str,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    frequencies: ndarray | None = None,
    *,
    precision: Precisions,
) -> ndarray:
    """Compute `turned_error` of x."""
    at = turns(x, positions, pairing, base, rotary_dim, frequencies)
    return total(lambda P: turned_error(x, at, P), precision)


def rotary_embedding_grad(
    d_output: ndarray,
    x: ndarray,
    positions: ndarray,
    pairing: str,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    frequencies: ndarray | None = None,
    *,
    precision: Precisions,
) -> Grads:
    """Compute `turned_error` of what arrives, and `frequency_error` where they are given."""
    at = turns(x, positions, pairing, base, rotary_dim, frequencies)
    back = replace(at, angle=-at.angle)

    def bound(P: Precision) -> Grads:
        d_x = turned_error(d_output, back, P)
        return (d_x,) if frequencies is None else (d_x, frequency_error(d_output, x, at, P))

    return total(bound, precision)


def frequency_error(d_output: ndarray, x: ndarray, at: Turns, P: Precision) -> ndarray:
    """
    Bound the sum of p (dy_c y_a - dy_a y_c) over batch, heads and rows, in whatever order: with

        s = |dy_a x_a| + |dy_c x_c|,    o = |dy_a x_c| + |dy_c x_a|

    the errors of the tables, sum |p| (s S + o C), and for all products and sums

        (acc(n) + g(6, u)) sum |p| (s |sin| + o |cos| + s S + o C)

    in `acc`, and four roundings of what may be written between them, in `stage`.
    """
    C, S = table_errors(at, P)
    (a, c), (da, dc) = ((y[..., at.first], y[..., at.second]) for y in (x, d_output))
    same, crossed = np.abs(da * a) + np.abs(dc * c), np.abs(da * c) + np.abs(dc * a)
    p, cos, sin = np.abs(at.positions), np.cos(at.angle), np.sin(at.angle)
    tables = p * (same * S + crossed * C)
    whole = p * (same * np.abs(sin) + crossed * np.abs(cos)) + tables
    n = same[..., 0].size
    share = accumulation_error(n, P) + gamma(6, P.acc.u) + gamma(4, P.stage.u)
    lost = (underflow(n, P) + 6 * n * (P.acc.eta + P.stage.eta)) * (1 + p.max(initial=0))
    top = whole.sum((0, 1, 2))
    E = with_overflow(tables.sum((0, 1, 2)) + share * top + lost, top, sums_format(P))
    y_a, y_c = a * cos - c * sin, a * sin + c * cos
    value = (at.positions * (dc * y_a - da * y_c)).sum((0, 1, 2))
    return rounding_error(value, E, at_least_float32(P.storage))
