"""
Two features of an additive score that share one reciprocal stay within the bound of two tangents
apart: every rounding at its largest, with every combination of signs.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy import ndarray

from attnverify.bounds.error_rules import gamma
from attnverify.bounds.scores import Additive, tangent_error
from attnverify.precision import FLOAT32, PRESETS, Precision

ROUNDINGS = {
    "fused": {"e": 0, "product": 0, "reciprocal": 2},
    "one by one": {"e": 1, "product": 1, "reciprocal": 1},
}
"""Of the product in 1 + e, the second product by a weight, and the last quotient, in units of u."""


def pair_of_tangents(
    w: ndarray, e: ndarray, signs: ndarray, u: float, how: str, lost: float = 0.0
) -> ndarray:
    """
    w.t by one reciprocal, every rounding with one of these signs at its largest; ``lost`` is that
    of the sum of the weights.
    """
    units = ROUNDINGS[how]
    off = 1 + u * signs
    e = e * (off[0:2] if units["e"] else 1)
    x = (1 + e) * off[2:4]
    second = w[0] * x[1] * (off[5] if units["product"] else 1)
    numerator = (second + w[1] * x[0] * off[4]) * off[6]
    divided = (1 + units["reciprocal"] * u * signs[7]) / (x[0] * x[1] * off[8])
    return np.asarray((w.sum() * (1 + lost) - 2 * numerator * divided) * off[9])


def largest_share(weights: tuple[float, float], how: str, lost: float = 0.0) -> float:
    """The largest error of two tangents, as a share of what the bound allows."""
    P, u = replace(PRESETS["fused"](FLOAT32), exp_ulps=0.0, tanh_form="exponential"), 2.0**-24
    signs = np.array(list(product((-1.0, 1.0), repeat=10))).T[:, :, None]
    w, one, share = np.asarray(weights), np.tanh(np.linspace(-9, 9, 37)), 0.0
    for other in (-0.99, -0.5, 0.0, 0.5, 0.99):
        t = np.stack([one, np.full_like(one, other)])
        e = ((1 + t) / (1 - t))[:, None]
        off = np.abs(pair_of_tangents(w, e, signs, u, how, u * lost) - w @ t).max(0)
        allowed = np.abs(w) @ (allowed_error(t, P) + (u + gamma(2, u)) * np.abs(t))
        share = max(share, float((off / allowed).max()))
    return share


def allowed_error(t: ndarray, P: Precision) -> ndarray:
    """What the bound allows a tangent of exact projections, whose exponentials are exact."""
    none = np.zeros((1, 1))
    at = Additive(none, none, none, none, none, none, none, none, t, none, None)
    return np.asarray(tangent_error(at, P)[0])


@pytest.mark.parametrize("how", ROUNDINGS)
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, -1.0), (0.1, 1.0), (1.0, -0.1)])
def test_two_tangents_by_one_reciprocal_err_within_the_bound(
    weights: tuple[float, float], how: str
) -> None:
    assert 0.5 < largest_share(weights, how) <= 1 + 1e-6


def test_a_sum_of_weights_that_is_rounded_exceeds_it() -> None:
    assert largest_share((1.0, 1.0), "fused", lost=1.0) > 1.01
