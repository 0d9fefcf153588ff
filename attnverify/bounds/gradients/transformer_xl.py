"""Bounds for the gradients of the Transformer-XL layer and of a stack of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import gamma, rounding_error, start_error, storage_error
from attnverify.bounds.feed_forward import feed_forward
from attnverify.bounds.gradients.feed_forward import feed_forward_gradient
from attnverify.bounds.gradients.heads import Pair, parameter_gradients
from attnverify.bounds.gradients.layer_norm import layer_norm_gradient
from attnverify.bounds.gradients.layers import in_order
from attnverify.bounds.gradients.relative import read_without_shift, transformer_xl_gradients
from attnverify.bounds.gradients.steps import (
    at_seeing_queries,
    at_seen_keys,
    backward,
    nan_to_inf,
    scaled_gradient,
    score_gradient_error,
)
from attnverify.bounds.layers import Parameters, merge, split
from attnverify.bounds.softmax_rows import Precisions, total
from attnverify.bounds.transformer_xl import (
    LayerForward,
    layer_forward,
    normed_sum,
    stack_forward,
)
from attnverify.bounds.weighted_mean import WeightedMean
from attnverify.precision import Precision


@dataclass(frozen=True)
class LayerBackward:
    """
    The gradient of a layer's input and that of its positions, kept in `stage`, and the errors of
    those of its parameters, stored.
    """

    x: Pair
    position: Pair
    found: dict[str, ndarray]


def layer_backward(
    forward: LayerForward, d_output: Pair, parameters: Parameters, eps: float, P: Precision
) -> LayerBackward:
    """
    Bound the backward pass of one layer: `feed_forward_gradient` where there is one,
    `layer_norm_gradient`, the output projection, the attention between results of projections, and
    these; each result is kept in `stage`.
    """
    within, H = replace(P, storage=P.stage), forward.at.q.shape[1]
    gain, bias = parameters["layer_norm.weight"], parameters.get("layer_norm.bias")
    d_normed, of_feed_forward = d_output, dict[str, ndarray]()
    if "ff_in.weight" in parameters:
        fed = feed_forward(*normed_sum(forward, parameters, eps, P), parameters, P)
        d_normed, of_feed_forward = feed_forward_gradient(fed, d_output, parameters, eps, P)
    dz, found = layer_norm_gradient(d_normed, *forward.z, gain, bias, eps, P)
    heard, E_heard = forward.heard
    E_heads, grads = parameter_gradients("o_net", forward.net["o_net"], dz, heard, P, E_heard)
    d_heads = split(dz[0] @ forward.net["o_net"][0], H), split(E_heads, H)
    parts, rows, own = attention_backward(forward, d_heads, within)
    found |= grads | {name: storage_error(*own[name], P.stage, P.storage) for name in own}
    E_position, grads = parameter_gradients(
        "r_net", forward.net["r_net"], rows, forward.position[0][None], P, forward.position[1]
    )
    d_position = (rows[0] @ forward.net["r_net"][0])[0], E_position[0]
    d_x, more = inputs_backward(forward, dz, parts, P)
    return LayerBackward(d_x, d_position, found | grads | more | of_feed_forward)


def attention_backward(
    forward: LayerForward, d_heads: Pair, P: Precision
) -> tuple[list[Pair], Pair, dict[str, Pair]]:
    """
    Bound the gradients of queries, keys and values, side by side, of the rows of positions
    [1 M F], and of u and v.
    """
    at, (_, Ev), (_, Ek) = forward.at, forward.v, forward.k
    mix, d_heads = without_lost_gradients(forward.mix, d_heads)
    back = backward(mix, d_heads[0])
    E_dS, E_dv = score_gradient_error(back, forward.Es, P, Ev, d_heads[1], P.storage)
    s, E = scaled_gradient(back.dS, E_dS, at.scale, mix.rows, P)
    t, E_t = read_without_shift(s), read_without_shift(E)
    errors = transformer_xl_gradients(at, s, E, t, E_t, P, forward.Eq, Ek, forward.E_r)
    E_dq, E_dk, E_dr, E_du, E_dw = errors
    E_dq, E_dk = at_seeing_queries(mix.rows, E_dq), at_seen_keys(mix.rows, nan_to_inf(E_dk))
    content, far = s @ at.kT.swapaxes(-1, -2), t @ at.rT.swapaxes(-1, -2)
    dk = s.swapaxes(-1, -2) @ (at.q + at.u)
    dv = back.w.swapaxes(-1, -2) @ d_heads[0]
    dr = (t.swapaxes(-1, -2) @ (at.q + at.v)).sum(0)
    parts = (content + far, E_dq), (dk, E_dk), (dv, E_dv)
    own = {"u": (content.sum((0, 2)), E_du), "v": (far.sum((0, 2)), E_dw)}
    rows = merge(dr)[None], merge(E_dr)[None]
    return [(merge(d), merge(E_d)) for d, E_d in parts], rows, own


def without_lost_gradients(mix: WeightedMean, d_heads: Pair) -> tuple[WeightedMean, Pair]:
    """
    Put zeros for gradients of the output that are no numbers, the rows that they arrive at lost in
    every head: such a row reaches no key and no value that it does not see.
    """
    gone = ~np.isfinite(d_heads[0]).all(-1, keepdims=True)
    if not gone.any():
        return mix, d_heads
    lost = gone if mix.rows.lost is None else gone | mix.rows.lost
    rows = replace(mix.rows, lost=np.broadcast_to(lost, mix.rows.s.shape))
    d_output, E = (np.where(gone, 0.0, x) for x in d_heads)
    return replace(mix, rows=rows), (d_output, E)


def inputs_backward(
    forward: LayerForward, dz: Pair, parts: list[Pair], P: Precision
) -> tuple[Pair, dict[str, ndarray]]:
    """
    Bound dx = dz + dq W_q + dk W_k + dv W_v, kept in `stage`, and the gradients of qkv_net.

    The products are rounded to `stage` and added in any order, or are one sum, which may begin with
    dz.
    """
    (x, E_x), (keys, E_keys), N = forward.x, forward.keys, forward.x[0].shape[1]
    weight, bias = forward.net["qkv_net"]
    terms, biases = 3 * x.shape[-1] + 1, 3 * [None] if bias is None else np.split(bias, 3)
    whole, E, size, found = *dz, np.abs(dz[0]) + dz[1], []
    E = E + start_error(size, terms, P)
    for (d, E_d), w, b, given, E_given in zip(
        parts, np.split(weight, 3), biases, (x, keys, keys), (E_x, E_keys, E_keys), strict=True
    ):
        E_dx, grads = parameter_gradients("part", (w, b), (d, E_d), given, P, E_given, terms)
        dx = (d @ w)[:, -N:]
        whole, E, size = whole + dx, E + E_dx[:, -N:], size + np.abs(dx) + E_dx[:, -N:]
        found.append(grads)
    E = rounding_error(whole, E + gamma(3, P.stage.u) * size, P.stage)
    grads = {
        name.replace("part", "qkv_net"): np.concatenate([each[name] for each in found])
        for name in found[0]
    }
    return (whole, E), grads


def transformer_xl_layer_grad(
    d_output: ndarray,
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
) -> tuple[Any, ...]:
    """
    Bound the errors of the gradients of x, position and the parameters, by `layer_backward`; that
    of the memory is exactly zero.
    """
    d_mem = () if mem is None else (np.zeros_like(mem),)

    def bound(P: Precision) -> tuple[Any, ...]:
        given = (x, None), (position, None), parameters, num_heads, mem, visible, P, keep, p
        arriving = d_output, np.zeros_like(d_output)
        back = layer_backward(layer_forward(*given), arriving, parameters, eps, P)
        stored = (storage_error(*each, P.stage, P.storage) for each in (back.x, back.position))
        return *stored, in_order(back.found, parameters), *d_mem

    return total(bound, precision)


def transformer_xl_grad(
    d_output: ndarray,
    d_new_mems: Sequence[ndarray] | None,
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
) -> tuple[Any, ...]:
    """
    Bound the errors of the gradients of x and of each layer's parameters, layer by layer from the
    last; what goes from one to the next is stored. Those of the memories are exactly zero.
    """
    d_mems = () if mems is None else ([np.zeros_like(mem) for mem in mems],)

    def bound(P: Precision) -> tuple[Any, ...]:
        layers, _ = stack_forward(x, parameters, num_heads, mems, eps, P, keep, p)
        d_hidden: Pair = d_output, np.zeros_like(d_output)
        found: list[dict[str, ndarray]] = []
        for forward, each in zip(layers[::-1], parameters[::-1], strict=True):
            back = layer_backward(forward, d_hidden, each, eps, P)
            d_hidden = back.x[0], storage_error(*back.x, P.stage, P.storage)
            found.insert(0, in_order(back.found, each))
        return d_hidden[1], found, *d_mems

    return total(bound, precision)
