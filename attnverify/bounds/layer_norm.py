"""Bounds for layer norm."""

from collections.abc import Mapping

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import (
    accumulation_error,
    gamma,
    rounding_error,
    sums_format,
    with_overflow,
)
from attnverify.precision import Format, Precision


def normalised(z: ndarray, gain: ndarray | None, bias: ndarray | None, eps: float) -> ndarray:
    """Compute layer norm over the last axis."""
    c = z - mean(z)
    y = c / np.sqrt(mean(c * c) + eps)
    return y * (1.0 if gain is None else gain) + (0.0 if bias is None else bias)


def layer_norm_with_error(
    summed: tuple[ndarray, ndarray],
    parameters: Mapping[str, ndarray | None],
    name: str,
    eps: float,
    P: Precision,
    fmt: Format,
) -> tuple[ndarray, ndarray]:
    """Compute the layer norm of this name, of a sum and its error, kept in a format."""
    weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
    z, E = summed
    return normalised(z, weight, bias, eps), layer_norm_error(z, E, weight, bias, eps, P, fmt)


def mean(x: ndarray) -> ndarray:
    """Compute the mean over the last axis, which stays."""
    return x.mean(-1, keepdims=True)


def variance_ratio(v: ndarray, size: ndarray, eps: float, P: Precision) -> ndarray:
    """
    Bound how much the algorithm adds to the variance, as a fraction of v + eps and at its worst
    over all variances of at least v:

        2 acc(d+3) sqrt(v (v + mu^2)) + (1 + acc(d+3)) (acc(d+1) mean|z|)^2    two-pass, Welford,
        Chan: n u kappa 4 acc(d+3) (v + mu^2)                                                  mean
        of squares minus squared mean: n u kappa^2

    where sqrt(v (v + mu^2)) <= v + |mu| sqrt(v), and sqrt(v) / (v + eps) falls once v >= eps.
    """
    d, centre = size.shape[-1], mean(size)
    step = accumulation_error(d + 3, P)
    if P.variance == "one_pass":
        return 4 * step * (1 + centre**2 / (v + eps)) + P.acc.eta / (v + eps)
    steepest = np.maximum(v, eps)
    slope = np.sqrt(steepest) / (steepest + eps)
    return 2 * step * (1 + centre * slope) + (
        (1 + step) * (accumulation_error(d + 1, P) * centre) ** 2 + P.acc.eta
    ) / (v + eps)


def layer_norm_error(
    z: ndarray,
    Ez: ndarray,
    gain: ndarray | None,
    bias: ndarray | None,
    eps: float,
    P: Precision,
    fmt: Format,
) -> ndarray:
    """
    Bound the error of layer norm over z, the smaller of two bounds, then gain and bias.

    Small errors of z, propagated:

        E_mu = mean(Ez) + acc(d+1) mean(|z|+Ez),  E_c = Ez + E_mu + u (|c| + Ez + E_mu)
        rho  = (2 mean(|c| Ez) + mean(Ez^2)) / (v+eps), and `variance_ratio`;
             r = (1 - rho)^(-1/2) - 1 + g(6, u)
        E_y  = E_c rstd (1+r) + |y| r + 4 u (|z| + |mu| + Ez + E_mu) rstd (1+r)          the last
             for z rstd - mu rstd

    Errors as large as the spread of z: the exact norm of whatever z has become stays within
    sqrt(d-1), so E_y <= |y| + sqrt(d-1) and what the algorithm adds on its own.

    The sum of squares, of c or in one pass of z, must fit what sums are kept in.
    """
    size, d, mu = np.abs(z) + Ez, z.shape[-1], mean(z)
    c = z - mu
    v, bent = mean(c * c), 2 * mean(np.abs(c) * Ez) + mean(Ez * Ez)
    y, low = c / np.sqrt(v + eps), np.maximum(v - bent, 0.0)
    off, moved = variance_ratio(low, size, eps, P), bent / (v + eps)
    Ec = Ez + mean(Ez)
    near = _normalised_error(
        np.abs(y), Ec, np.abs(c) + Ec, v, moved + off * (1 + moved), size, eps, P
    )
    edge = np.sqrt(d - 1)
    far = np.abs(y) + edge + _normalised_error(edge, 0.0, np.abs(c) + Ec, low, off, size, eps, P)
    squared = size if P.variance == "one_pass" else np.abs(c) + Ec
    E = with_overflow(np.fmin(near, far), d * mean(squared * squared), sums_format(P))
    if gain is not None:
        y, E = y * gain, rounding_error(y * gain, E * np.abs(gain), P.acc)
    if bias is not None:
        y, E = y + bias, rounding_error(y + bias, E, P.acc)
    return rounding_error(y, E, fmt)


def _normalised_error(
    y: ndarray | float,
    Ec: ndarray | float,
    c: ndarray,
    v: ndarray,
    ratio: ndarray,
    size: ndarray,
    eps: float,
    P: Precision,
) -> ndarray:
    """
    E_y from the error Ec of c before the mean's own, and the relative error `ratio` of v + eps.
    """
    u, rstd = P.acc.u, 1 / np.sqrt(v + eps)
    E_mean = accumulation_error(size.shape[-1] + 1, P) * mean(size) + P.acc.eta
    r = np.where(ratio < 1, 1 / np.sqrt(np.maximum(1 - ratio, 0.0)) - 1, np.inf) + gamma(6, u)
    return np.asarray(
        (Ec + E_mean + u * (c + E_mean) + 4 * u * (size + mean(size) + E_mean)) * rstd * (1 + r)
        + y * r
    )
