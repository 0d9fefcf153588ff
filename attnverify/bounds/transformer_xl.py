"""Bounds for the Transformer-XL layer and for a stack of them over one segment."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import (
    accumulation_error,
    gamma,
    rounding_error,
    sums_format,
    with_overflow,
)
from attnverify.bounds.layers import Pair, Parameters, affine, linear_error, merge, split
from attnverify.bounds.relative import (
    TransformerXL,
    sinusoid_error,
    sinusoids,
    transformer_xl_error,
    transformer_xl_mixture,
    transformer_xl_terms,
)
from attnverify.bounds.softmax_rows import Precisions, total
from attnverify.bounds.weighted_mean import WeightedMean, weighted_mean_error
from attnverify.precision import Format, Precision


@dataclass(frozen=True)
class LayerForward:
    """
    One layer up to its norm: what its projections are given and give, in heads, the attention, and
    the sum z that is normalised, in float64 and with their errors.
    """

    net: dict[str, tuple[ndarray, ndarray | None]]
    x: Pair
    keys: Pair
    position: Pair
    Eq: ndarray
    k: Pair
    v: Pair
    E_r: ndarray
    at: TransformerXL
    mix: WeightedMean
    Es: ndarray
    heard: Pair
    z: tuple[ndarray, ndarray]


def layer_forward(
    x: Pair,
    position: Pair,
    parameters: Parameters,
    num_heads: int,
    mem: ndarray | None,
    visible: ndarray | None,
    P: Precision,
    keep: ndarray | None = None,
    p: float = 0.0,
) -> LayerForward:
    """
    Compute projections of [mem, x] and of the positions in `stage`, the attention with all their
    errors, the output projection, whose sum may begin with the residual, and the residual sum
    rounded to `stage`.
    """
    (value, E), N = x, x[0].shape[1]
    whole = value if mem is None else np.concatenate([mem, value], 1)
    E_whole = E if mem is None or E is None else np.concatenate([np.zeros_like(mem), E], 1)
    net = {
        name: (parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))
        for name in ("qkv_net", "r_net", "o_net")
    }
    qkv, r = affine(whole, *net["qkv_net"]), affine(position[0], *net["r_net"])
    E_qkv = linear_error((whole, E_whole), *net["qkv_net"], P, P.stage)
    E_r = split(linear_error(position, *net["r_net"], P, P.stage), num_heads)
    q, k, v = (split(part, num_heads) for part in np.split(qkv, 3, -1))
    Eq, Ek, Ev = (split(part, num_heads) for part in np.split(E_qkv, 3, -1))
    at = transformer_xl_terms(
        q[..., -N:, :], k, split(r, num_heads), parameters["u"], parameters["v"]
    )
    mix, Eq = transformer_xl_mixture(at, v, visible, keep, p), Eq[..., -N:, :]
    Es = transformer_xl_error(at, P, Eq, Ek.swapaxes(-1, -2), E_r.swapaxes(-1, -2))
    heard, E_heard = merge(mix.o), merge(weighted_mean_error(mix, Es, Ev, P, P.stage))
    out, E_out = (
        affine(heard, *net["o_net"]),
        linear_error((heard, E_heard), *net["o_net"], P, P.stage, (value, E)),
    )
    z, E_z = value + out, E_out if E is None else E_out + E
    summed = z, rounding_error(z, E_z, P.stage)
    kept = (whole, E_whole), position, Eq, (k, Ek), (v, Ev), E_r, at, mix, Es, (heard, E_heard)
    return LayerForward(net, x, *kept, summed)


def layer_with_error(
    forward: LayerForward, parameters: Parameters, eps: float, P: Precision
) -> Pair:
    """Compute the norm of one layer's sum and its error, stored."""
    norm = parameters.get("layer_norm.weight"), parameters.get("layer_norm.bias"), eps
    z, E = forward.z
    return normalised(z, *norm), layer_norm_error(z, E, *norm, P, P.storage)


def transformer_xl_layer(
    x: ndarray,
    position: ndarray,
    parameters: Parameters,
    num_heads: int,
    mem: ndarray | None = None,
    visible: ndarray | None = None,
    eps: float = 1e-5,
    keep: ndarray | None = None,
    p: float = 0.0,
    *,
    precision: Precisions,
) -> ndarray:
    """Bound the error of one layer on exact inputs."""

    def error(P: Precision) -> ndarray | None:
        given = (x, None), (position, None), parameters, num_heads, mem, visible, P, keep, p
        return layer_with_error(layer_forward(*given), parameters, eps, P)[1]

    return total(error, precision)


def transformer_xl(
    x: ndarray,
    parameters: Sequence[Parameters],
    num_heads: int,
    mems: Sequence[ndarray] | None,
    mem_len: int,
    eps: float = 1e-5,
    keep: ndarray | None = None,
    p: float = 0.0,
    *,
    precision: Precisions,
) -> tuple[ndarray, list[ndarray] | None]:
    """
    Bound the errors of the last hidden states and of the new memories, which carry each layer's
    input and so its error.

    The positions are computed in `acc` and stored, whatever the layers keep between their stages.
    """

    def error(P: Precision) -> tuple[ndarray, list[ndarray] | None]:
        layers, (_, E) = stack_forward(x, parameters, num_heads, mems, eps, P, keep, p)
        errors = (np.zeros_like(x) if each.x[1] is None else each.x[1] for each in layers)
        kept = [
            _join_memory(mem, E_x, mem_len) for mem, E_x in zip(mems or [], errors, strict=False)
        ]
        return np.zeros_like(x) if E is None else E, None if mems is None else kept

    return total(error, precision)


def stack_forward(
    x: ndarray,
    parameters: Sequence[Parameters],
    num_heads: int,
    mems: Sequence[ndarray] | None,
    eps: float,
    P: Precision,
    keep: ndarray | None,
    p: float,
) -> tuple[list[LayerForward], Pair]:
    """Compute each layer of a stack up to its norm, and the last one's output with its error."""
    M = x.shape[1] + (0 if mems is None else mems[0].shape[1])
    values = sinusoids(M, x.shape[-1])[2]
    position = values, rounding_error(values, sinusoid_error(M, x.shape[-1], P), P.storage)
    hidden: Pair = (x, None)
    layers = []
    for index, each in enumerate(parameters):
        mem = None if mems is None else mems[index]
        draw = keep if keep is None or keep.ndim < 5 else keep[index % len(keep)]
        layers.append(layer_forward(hidden, position, each, num_heads, mem, None, P, draw, p))
        hidden = layer_with_error(layers[-1], each, eps, P)
    return layers, hidden


def _join_memory(mem: ndarray, E: ndarray, mem_len: int) -> ndarray:
    """Join the last mem_len positions of an exact memory followed by the layer's input."""
    whole = np.concatenate([np.zeros_like(mem), E], 1)
    return whole[:, max(whole.shape[1] - mem_len, 0) :]


def normalised(z: ndarray, gain: ndarray | None, bias: ndarray | None, eps: float) -> ndarray:
    """Compute layer norm over the last axis."""
    c = z - mean(z)
    y = c / np.sqrt(mean(c * c) + eps)
    return y * (1.0 if gain is None else gain) + (0.0 if bias is None else bias)


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
