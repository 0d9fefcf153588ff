"""Pairs of channels turned: tables that are kept, products that are rounded or fused."""

from typing import Any

import numpy as np
from numpy import ndarray

from tests.rounding_variants.machine import Machine, fused_multiply_add


def frequencies_of(at: Machine, R: int, base: float) -> ndarray:
    """The base's frequencies, by an exponential, a power or its reciprocal."""
    r, b = np.arange(R).astype(at.work), at.work(base)
    power = lambda x: at.function(
        lambda y: np.power(y.dtype.type(b), y), x, at.P.exp_ulps, at.P.acc
    )
    if at.order.frequency == "exponential":
        step = at.work(-at.work(np.log(base)) / at.work(R))
        return at.function(np.exp, r * step, at.P.exp_ulps, at.P.acc)
    if at.order.frequency == "power":
        return power(-r / at.work(R))
    return at.work(1) / power(r / at.work(R))


def tables(at: Machine, x: ndarray, positions: ndarray, **given: Any) -> tuple[ndarray, ...]:
    """Cosines and sines, and the places of the first and second channels."""
    rotary_dim, f = given.get("rotary_dim"), given.get("frequencies")
    R = (x.shape[-1] if rotary_dim is None else rotary_dim) // 2
    f = frequencies_of(at, R, given["base"]) if f is None else at.read(f)
    angle = plain(at, positions[:, None, :, None].astype(at.work) * f)
    each = (at.function(g, angle, at.P.sin_ulps, at.P.acc) for g in (np.cos, np.sin))
    halves = given["pairing"] == "halves"
    first = np.arange(R) if halves else np.arange(0, 2 * R, 2)
    return *map(at.stage, each), first, first + (R if halves else 1)


def plain(at: Machine, x: ndarray) -> ndarray:
    """A number of its own, of no sum: no accumulator cuts it."""
    return at.to(x, at.P.acc)


def two(at: Machine, a: ndarray, x: ndarray, c: ndarray, y: ndarray) -> ndarray:
    """a x + c y, whose first product is written, or the second one too."""
    product = at.stage(plain(at, a * x))
    if at.order.multiply == "rounded":
        return at.stage(plain(at, product + at.stage(plain(at, c * y))))
    if at.work is np.float64:
        return at.stage(fused_multiply_add(c, y, product))
    return at.stage(plain(at, (c.astype(np.float64) * y + product).astype(np.float32)))


def turned(at: Machine, x: ndarray, cos: ndarray, sin: ndarray, *places: ndarray) -> ndarray:
    a, c = (at.read(x)[..., place] for place in places)
    y = at.read(x).copy()
    y[..., places[0]] = two(at, a, cos, c, -sin)
    y[..., places[1]] = two(at, a, sin, c, cos)
    return y


def rotary(at: Machine, x: ndarray, positions: ndarray, **given: Any) -> ndarray:
    return at.out(turned(at, x, *tables(at, x, positions, **given)))


def rotary_gradient(
    at: Machine, d_output: ndarray, x: ndarray, positions: ndarray, **given: Any
) -> tuple[ndarray, ...]:
    """By a frequency: from the output, or through the two tables."""
    cos, sin, *places = tables(at, x, positions, **given)
    d_x = at.out(turned(at, d_output, cos, -sin, *places))
    if given.get("frequencies") is None:
        return (d_x,)
    (a, c), (da, dc) = ([at.read(y)[..., p] for p in places] for y in (x, d_output))
    if at.order.mean == "output":
        y = turned(at, x, cos, sin, *places)
        d_angle = two(at, dc, y[..., places[0]], -da, y[..., places[1]])
    else:
        by_cos, by_sin = two(at, da, a, dc, c), two(at, dc, a, -da, c)
        d_angle = plain(at, plain(at, by_sin * cos) - plain(at, by_cos * sin))
    each = plain(at, positions[:, None, :, None].astype(at.work) * d_angle)
    return d_x, at.sum(each, (0, 1, 2)).astype(np.float64)


TURNS = {"rotary_embedding": rotary, "rotary_embedding_grad": rotary_gradient}
