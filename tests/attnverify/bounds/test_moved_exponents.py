"""
A row whose exponents are all moved alike by the rounded m c of fma(s, c, -m c): the normaliser
takes the shift back, but what underflows is that much larger beside it. The errors of weights and
gradients price it within e^E - 1, whose exponent holds the shift one and a half times.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy import ndarray

from attnverify.bounds.error_rules import gamma, rounding_error
from attnverify.bounds.gradients.steps import recomputed_error, recomputed_exponent_error
from attnverify.bounds.softmax_rows import Rows, exponent_error, rows, shared_shift
from attnverify.precision import FLOAT16, FLOAT32, Format, Precision, resolve

ATTENTION = "scaled_dot_product_attention"
TYPES = {FLOAT16.p: np.float16, FLOAT32.p: np.float32}
formats = pytest.mark.parametrize("fmt", [FLOAT16, FLOAT32], ids=["float16", "float32"])


def arithmetic(fmt: Format) -> Precision:
    """Softmax and weights in one format; exponentials that are right to the last bit."""
    P = resolve("eager", ATTENTION, ATTENTION, "float16" if fmt is FLOAT16 else "float32")
    return replace(P, softmax=fmt, prob=fmt, exp_ulps=0.5)


def moved_weights(s: ndarray, dtype: type) -> ndarray:
    """The weights by base 2 and one fused multiply-add, saved for the backward pass."""
    c = dtype(np.log2(np.e))
    at_top = dtype(float(s.max()) * float(c))
    x = (s * float(c) - float(at_top)).astype(dtype)
    w = np.exp2(x.astype(np.longdouble)).astype(dtype)
    total = dtype(w.astype(float).sum())
    return (w.astype(float) / float(total)).astype(dtype).astype(float)


def draw_scores(rng: np.random.Generator, fmt: Format) -> ndarray:
    """Large scores, one maximum, and others that leave a weight near the smallest numbers."""
    dtype = TYPES[fmt.p]
    near = -np.log(fmt.tiny) + rng.uniform(-2, 12, rng.integers(1, 4))
    most = rng.choice([10.0, 100.0, 1000.0, 5000.0]) * (1 if fmt is FLOAT16 else 1e4)
    top = -rng.uniform(0, most) if rng.random() < 0.5 else rng.uniform(0, most)
    return np.array([top, *(top - near)]).astype(dtype).astype(float)[None]


Exponent = Callable[[Rows, Precision], ndarray]


def share(s: ndarray, fmt: Format, exponent: Exponent) -> float:
    """The weights' error over its bound under this error of the exponents; 0 out of the domain."""
    P, at = arithmetic(fmt), rows(s, None)
    with np.errstate(all="ignore"):
        E = exponent(at, P)
        limit = rounding_error(at.p, recomputed_error(at, E, P), fmt)
        error = np.abs(moved_weights(s, TYPES[fmt.p]) - at.p)
        return float(np.where(np.isfinite(limit) & (error > 0), error / limit, 0.0).max())


def worst(fmt: Format, exponent: Exponent, draws: int = 2000) -> float:
    rng = np.random.default_rng(0)
    return max(share(draw_scores(rng, fmt), fmt, exponent) for _ in range(draws))


def whole(at: Rows, P: Precision) -> ndarray:
    return exponent_error(at, None, P)


def without_the_shift(at: Rows, P: Precision) -> ndarray:
    """The exponents' error but for what g(3, u) max(|s|, |m|) holds of the shift."""
    peak = np.maximum(np.abs(at.s), np.abs(at.m))
    return exponent_error(at, None, P) - gamma(3, P.softmax.u) * peak


@formats
def test_weights_of_a_moved_row_stay_within_their_bound(fmt: Format) -> None:
    assert 0.05 < worst(fmt, whole) <= 1


@formats
def test_without_the_shift_in_the_exponent_they_do_not(fmt: Format) -> None:
    assert worst(fmt, without_the_shift) > 1


@formats
def test_the_exponent_holds_the_shift_one_and_a_half_times(fmt: Format) -> None:
    rng, P = np.random.default_rng(1), arithmetic(fmt)
    for at in (rows(draw_scores(rng, fmt), None) for _ in range(100)):
        E = exponent_error(at, None, P)
        L = recomputed_exponent_error(at, E, None, P)
        assert (1.5 * shared_shift(np.abs(at.m), P) <= E).all() and (L >= E).all()
