"""Bounds for the Transformer-XL layer and for a stack of them over one segment."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import rounding_error
from attnverify.bounds.feed_forward import feed_forward
from attnverify.bounds.layer_norm import layer_norm_with_error
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
from attnverify.precision import Precision


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
    heard = merge(without_lost_rows(mix))
    E_heard = merge(weighted_mean_error(mix, Es, Ev, P, P.stage))
    out, E_out = (
        affine(heard, *net["o_net"]),
        linear_error((heard, E_heard), *net["o_net"], P, P.stage, (value, E)),
    )
    z, E_z = value + out, E_out if E is None else E_out + E
    summed = z, rounding_error(z, E_z, P.stage)
    kept = (whole, E_whole), position, Eq, (k, Ek), (v, Ev), E_r, at, mix, Es, (heard, E_heard)
    return LayerForward(net, x, *kept, summed)


def without_lost_rows(mix: WeightedMean) -> ndarray:
    """
    Give the outputs, NaN where a row sees a score that is no number: what comes after it, the keys
    of the next layer too, is told from what is only inexact.
    """
    lost, visible = mix.rows.lost, mix.rows.visible
    if lost is None:
        return mix.o
    hears = np.asarray((lost if visible is None else lost & visible).any(-1))
    return np.where(hears[..., None], np.nan, mix.o)


def layer_with_error(
    forward: LayerForward, parameters: Parameters, eps: float, P: Precision
) -> Pair:
    """
    Compute what a layer gives and its error, stored; what is fed forward is kept in `stage`.
    """
    if "ff_in.weight" not in parameters:
        return layer_norm_with_error(forward.z, parameters, "layer_norm", eps, P, P.storage)
    fed = feed_forward(*normed_sum(forward, parameters, eps, P), parameters, P)
    return layer_norm_with_error(fed.z, parameters, "ff_norm", eps, P, P.storage)


def normed_sum(
    forward: LayerForward, parameters: Parameters, eps: float, P: Precision
) -> tuple[ndarray, ndarray]:
    """Compute the norm of one layer's sum and its error, kept in `stage`."""
    return layer_norm_with_error(forward.z, parameters, "layer_norm", eps, P, P.stage)


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
