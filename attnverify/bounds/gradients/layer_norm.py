"""Bounds for the backward pass of layer norm."""

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import accumulation_error, gamma, rounding_error
from attnverify.bounds.gradients.steps import shared_gradient
from attnverify.bounds.layer_norm import layer_norm_error, mean, variance_ratio
from attnverify.precision import Precision

Pair = tuple[ndarray, ndarray]  # a value and its error


@dataclass(frozen=True)
class SavedNorm:
    """
    What the backward pass has of the forward one: n = (z - mu) rstd and rstd = 1 / sqrt(v + eps),
    with their errors, and the size of the numbers that z rstd - mu rstd is the difference of.
    """

    n: Pair
    rstd: Pair
    size: ndarray


def saved_norm(z: ndarray, E_z: ndarray, eps: float, P: Precision) -> SavedNorm:
    """
    Compute n and rstd again, or take mean and rstd as they were kept, in `stage`:

        rho  = bent + off (1 + bent), bent = (2 mean(|c| Ez) + mean(Ez^2)) / (v+eps), off the
               `variance_ratio`
        R    = rstd ((1 - rho)^(-1/2) - 1 + g(6, u)), at most (1 + g(6, u)) / sqrt(eps); kept
        E_n  = `layer_norm_error` + g(1, u_stage) (|n| + |mu| (rstd + R))
        size = (|z| + Ez + |mu| + mean(Ez)) (rstd + R)
    """
    u, mu = P.acc.u, mean(z)
    c, widest = z - mu, np.abs(z) + E_z
    v = mean(c * c)
    bent = (2 * mean(np.abs(c) * E_z) + mean(E_z * E_z)) / (v + eps)
    low = np.maximum(v - bent * (v + eps), 0.0)
    ratio = bent + variance_ratio(low, widest, eps, P) * (1 + bent)
    rstd, top = 1 / np.sqrt(v + eps), 1 / np.sqrt(eps) if eps else np.inf
    R = np.where(ratio < 1, 1 / np.sqrt(np.maximum(1 - ratio, 0.0)) - 1, np.inf) + gamma(6, u)
    R = rounding_error(rstd, np.fmin(rstd * R, top * (1 + gamma(6, u))), P.stage)
    kept = gamma(1, P.stage.u)
    E = layer_norm_error(z, E_z, None, None, eps, P, P.acc)
    n = c * rstd
    E = E + kept * (np.abs(n) + E + (np.abs(mu) + mean(E_z)) * (rstd + R))
    return SavedNorm((n, E), (rstd, R), (widest + mean(widest)) * (rstd + R))


def layer_norm_gradient(
    d_y: Pair,
    z: ndarray,
    E_z: ndarray,
    gain: ndarray,
    bias: ndarray | None,
    eps: float,
    P: Precision,
    name: str = "layer_norm",
) -> tuple[Pair, dict[str, ndarray]]:
    """
    Compute dz = rstd (a - m1 - n m2) with its error, kept in `stage`, and the errors of the
    gradients by gain and bias, stored; a = gain dy, m1 = mean(a), m2 = mean(n a):

        E_m1 = mean(Ea) + acc(F+1) mean(|a| + Ea)
        E_m2 = mean(|n| Ea + En (|a|+Ea)) + acc(F+2) mean(size (|a|+Ea))
        E_in = Ea + E_m1 + |n| E_m2 + En (|m2| + E_m2)
               + g(4, u) (|a| + Ea + |m1| + E_m1 + size (|m2| + E_m2))
        E_dz = (rstd + R) E_in + R |a - m1 - n m2| + g(2, u) of it

    where `size` stands for |n| in every rounding, for dz may be b z + c with b = -rstd^2 m2 and
    c = -b mu - rstd m1, and n a may be summed as z a and mu a apart.
    """
    saved, u, F = saved_norm(z, E_z, eps, P), P.acc.u, z.shape[-1]
    (n, E_n), (rstd, R), (dy, E_dy) = saved.n, saved.rstd, d_y
    a = dy * gain
    E_a = rounding_error(a, E_dy * np.abs(gain), P.acc)
    most, m1, m2 = np.abs(a) + E_a, mean(a), mean(n * a)
    E_m1 = mean(E_a) + accumulation_error(F + 1, P) * mean(most) + P.acc.eta
    E_m2 = mean(np.abs(n) * E_a + E_n * most)
    E_m2 = E_m2 + accumulation_error(F + 2, P) * mean(saved.size * most) + P.acc.eta
    inner, slope = a - m1 - n * m2, np.abs(m2) + E_m2
    E = E_a + E_m1 + np.abs(n) * E_m2 + E_n * slope
    E = E + gamma(4, u) * (most + np.abs(m1) + E_m1 + saved.size * slope) + 4 * P.acc.eta
    E = (rstd + R) * E + R * np.abs(inner)
    dz = rstd * inner
    E_dz = rounding_error(dz, rounding_error(dz, E, P.acc, 2), P.stage)
    return (dz, E_dz), _parameters_gradient(d_y, saved, bias, P, name)


def _parameters_gradient(
    d_y: Pair, saved: SavedNorm, bias: ndarray | None, P: Precision, name: str
) -> dict[str, ndarray]:
    """
    Bound the errors of sum dy n and sum dy over batch and positions; n is made on the way, as
    rstd z - rstd mu.
    """
    (dy, E_dy), (n, E_n) = d_y, saved.n
    most = np.abs(dy) + E_dy
    E = np.abs(n) * E_dy + E_n * most + gamma(4, P.acc.u) * saved.size * most
    E = E + 2 * P.acc.eta
    size = saved.size * most
    found = {f"{name}.weight": shared_gradient(dy * n, E, (0, 1), P, size=size)}
    if bias is not None:
        found[f"{name}.bias"] = shared_gradient(dy, E_dy, (0, 1), P)
    return found
