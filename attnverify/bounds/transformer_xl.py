"""Bounds for the Transformer-XL layer and for a stack of them over one segment."""

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import rounded
from attnverify.bounds.layers import Pair, Parameters, affine, linear_error, merge, split
from attnverify.bounds.norms import layer_norm_error, normalised
from attnverify.bounds.relative import (
    sinusoid_error,
    sinusoids,
    transformer_xl_error,
    transformer_xl_mixture,
)
from attnverify.bounds.relative import transformer_xl as terms
from attnverify.bounds.softmax import Precisions, total
from attnverify.bounds.weighted_mean import mixture_error
from attnverify.precision import Precision


def _layer(
    x: Pair,
    position: Pair,
    parameters: Parameters,
    num_heads: int,
    mem: ndarray | None,
    visible: ndarray | None,
    eps: float,
    P: Precision,
) -> Pair:
    """
    One layer and its error: projections of [mem, x] and of the positions in `stage`, the attention
    with all their errors, the output projection, the residual sum rounded to `stage`, layer norm,
    storage.
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
    E_r = split(linear_error(position, *net["r_net"], P, P.stage), num_heads).swapaxes(-1, -2)
    q, k, v = (split(part, num_heads) for part in np.split(qkv, 3, -1))
    Eq, Ek, Ev = (split(part, num_heads) for part in np.split(E_qkv, 3, -1))
    at = terms(q[..., -N:, :], k, split(r, num_heads), parameters["u"], parameters["v"])
    mix = transformer_xl_mixture(at, v, visible)
    Es = transformer_xl_error(at, P, Eq[..., -N:, :], Ek.swapaxes(-1, -2), E_r)
    heard, E_heard = merge(mix.o), merge(mixture_error(mix, Es, Ev, P, P.stage))
    out, E_out = (
        affine(heard, *net["o_net"]),
        linear_error((heard, E_heard), *net["o_net"], P, P.stage),
    )
    z, E_z = value + out, E_out if E is None else E_out + E
    norm = parameters.get("layer_norm.weight"), parameters.get("layer_norm.bias"), eps
    return normalised(z, *norm), layer_norm_error(z, rounded(z, E_z, P.stage), *norm, P, P.storage)


def transformer_xl_layer(
    x: ndarray,
    position: ndarray,
    parameters: Parameters,
    num_heads: int,
    mem: ndarray | None = None,
    visible: ndarray | None = None,
    eps: float = 1e-5,
    *,
    precision: Precisions,
) -> ndarray:
    """The error of one layer on exact inputs."""
    return total(
        lambda P: _layer((x, None), (position, None), parameters, num_heads, mem, visible, eps, P)[
            1
        ],
        precision,
    )


def transformer_xl(
    x: ndarray,
    parameters: Sequence[Parameters],
    num_heads: int,
    mems: Sequence[ndarray] | None,
    mem_len: int,
    eps: float = 1e-5,
    *,
    precision: Precisions,
) -> tuple[ndarray, list[ndarray] | None]:
    """
    The errors of the last hidden states and of the new memories, which carry each layer's input and
    so its error.

    The positions are computed in `acc` and stored, whatever the layers keep between their stages.
    """
    M = x.shape[1] + (0 if mems is None else mems[0].shape[1])

    def error(P: Precision) -> tuple[ndarray, list[ndarray] | None]:
        values = sinusoids(M, x.shape[-1])[2]
        position = values, rounded(values, sinusoid_error(M, x.shape[-1], P), P.storage)
        hidden: Pair = (x, None)
        kept = []
        for index, each in enumerate(parameters):
            mem = None if mems is None else mems[index]
            E = np.zeros_like(x) if hidden[1] is None else hidden[1]
            kept += [] if mem is None else [_remembered(mem, E, mem_len)]
            hidden = _layer(hidden, position, each, num_heads, mem, None, eps, P)
        return np.zeros_like(x) if hidden[1] is None else hidden[1], None if mems is None else kept

    return total(error, precision)


def _remembered(mem: ndarray, E: ndarray, mem_len: int) -> ndarray:
    """The last mem_len positions of an exact memory followed by the layer's input."""
    whole = np.concatenate([np.zeros_like(mem), E], 1)
    return whole[:, max(whole.shape[1] - mem_len, 0) :]
