"""Bounds for the position-wise feed-forward of a layer: two linear maps, ReLU, residual, norm."""

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import rounding_error
from attnverify.bounds.layers import Parameters, affine, linear_error
from attnverify.precision import Precision

Pair = tuple[ndarray, ndarray]  # a value and its error


@dataclass(frozen=True)
class FeedForward:
    """
    What is fed forward, what the ReLU is given and gives, and the sum z that is normalised, in
    float64 and with their errors.
    """

    net: dict[str, tuple[ndarray, ndarray | None]]
    given: Pair
    a: Pair
    r: Pair
    z: Pair


def feed_forward(x: ndarray, E: ndarray, parameters: Parameters, P: Precision) -> FeedForward:
    """
    Compute the two linear maps and the residual sum in `stage`, with their errors.

    What is a sum of zeros alone is zero in every arithmetic. The sum of the second map may begin
    with the residual.
    """
    net = {
        name: (parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))
        for name in ("ff_in", "ff_out")
    }
    (weight, bias), a = net["ff_in"], affine(x, *net["ff_in"])
    E_a = linear_error((x, E), weight, bias, P, P.stage)
    size = affine(np.abs(x) + E, np.abs(weight), None if bias is None else np.abs(bias))
    E_a = np.where(size == 0, 0.0, E_a)
    r, E_r = np.maximum(a, 0.0), relu_error(a, E_a)
    out = affine(r, *net["ff_out"])
    z, E_z = x + out, linear_error((r, E_r), *net["ff_out"], P, P.stage, (x, E)) + E
    return FeedForward(net, (x, E), (a, E_a), (r, E_r), (z, rounding_error(z, E_z, P.stage)))


def relu_error(a: ndarray, E: ndarray) -> ndarray:
    """
    Bound the error of max(a, 0): E where a is positive, and where it is negative what a + E leaves
    above 0.
    """
    return np.minimum(E, np.maximum(a + E, 0.0))


def relu_gradient(d: ndarray, E_d: ndarray, a: ndarray, E_a: ndarray) -> Pair:
    """
    Compute d where a > 0, else 0, and its error: that of d, or none. Where a lies within its own
    error of 0, either branch may be taken, and the error is |d| + E_d.
    """
    passes, undecided = a > 0, (np.abs(a) <= E_a) & (E_a > 0)
    E = np.where(passes, E_d, 0.0)
    return np.where(passes, d, 0.0), np.where(undecided, np.abs(d) + E_d, E)
