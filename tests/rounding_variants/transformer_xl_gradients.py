"""The backward pass of layer norm, and that of a Transformer-XL layer and of a stack around it."""

from typing import Any

import numpy as np
from numpy import ndarray

from tests.rounding_variants.attention import weighted
from tests.rounding_variants.gradients import score_gradient, sheared, txl_parts
from tests.rounding_variants.layer_gradients import added_products, linear_gradient
from tests.rounding_variants.layers import (
    feed_forward,
    layer_norm,
    linear,
    merge_heads,
    split_heads,
    txl_layer,
)
from tests.rounding_variants.machine import Machine
from tests.rounding_variants.operations import positions
from tests.rounding_variants.scores import txl_scores

Inputs = dict[str, Any]
PARTS = ("query", "key", "value")


def layer_norm_gradient(
    at: Machine,
    d_y: ndarray,
    z: ndarray,
    parameters: Inputs,
    eps: float,
    name: str = "layer_norm",
) -> tuple[ndarray, dict[str, ndarray]]:
    """
    With mean and rstd as they were kept, in `stage`: of the normalised numbers, or of z itself,
    as b z + c.
    """
    d, gain = at.work(z.shape[-1]), at.read(parameters[f"{name}.weight"])
    mu = at.sum(z)[..., None] / d
    variance = at.sum((z - mu) * (z - mu))[..., None] / d
    rstd = at.stage(at.work(1) / np.sqrt(variance + at.work(eps)))
    mu, a = at.stage(mu), d_y * gain
    if at.order.norm in ("quotient", "root"):
        n = (z - mu) * rstd
        m1, m2 = (at.sum(x)[..., None] / d for x in (a, n * a))
        dz = (a - m1 - n * m2) * rstd
    else:
        n = z * rstd - mu * rstd
        of_a, of_z = at.sum(a)[..., None], at.contract(a, z)[..., None]
        b = (of_a * mu - of_z) * rstd * rstd * rstd / d
        dz = rstd * a + b * z + (-b * mu - of_a * rstd / d)
    found = {f"{name}.weight": at.out(at.sum(d_y * n, (0, 1)))}
    if parameters.get(f"{name}.bias") is not None:
        found[f"{name}.bias"] = at.out(at.sum(d_y, (0, 1)))
    return at.stage(dz), found


def txl_layer_gradient(
    at: Machine,
    d_output: ndarray,
    x: ndarray,
    position: ndarray,
    parameters: Inputs,
    num_heads: int,
    mem: ndarray | None = None,
    visible: ndarray | None = None,
    eps: float = 1e-5,
    keep: ndarray | None = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    x, position, H, N = at.read(x), at.read(position), num_heads, x.shape[1]
    whole = x if mem is None else np.concatenate([at.read(mem), x], 1)
    q, k, v = (
        split_heads(part, H) for part in np.split(linear(at, whole, parameters, "qkv_net"), 3, -1)
    )
    r = split_heads(linear(at, position, parameters, "r_net"), H)
    u_v = {name: parameters[name] for name in ("u", "v")}
    s = txl_scores(at, q[:, :, -N:], k, r, *u_v.values(), visible)
    heard = merge_heads(at.stage(weighted(at, s, v, keep, p)[0]))
    z = linear(at, heard, parameters, "o_net", residual=x)
    d_normed, of_feed_forward = at.read(d_output), {}
    if "ff_in.weight" in parameters:
        normed = layer_norm(at, z, parameters, eps, kept=at.stage)
        d_normed, of_feed_forward = feed_forward_gradient(at, d_normed, normed, parameters, eps)
    dz, found = layer_norm_gradient(at, d_normed, z, parameters, eps)
    d_heard, grads = linear_gradient(at, dz, heard, parameters, "o_net")
    d_heads = split_heads(at.stage(d_heard), H)
    given = {"value": v, "keep": keep, "p": p, "d_output": d_heads, "kept": at.P.stage}
    dS, dV = score_gradient(at, s, given)
    t = shifted_back(dS)
    inputs = {"query": q[:, :, -N:], "key": k, "position": r} | u_v
    dQ, dK, d_r, *d_biases = txl_parts(at, dS, t, inputs)
    found |= grads | {n: at.out(at.stage(d)) for n, d in zip(u_v, d_biases, strict=True)}
    d_rows = at.stage(merge_heads(d_r))[None]
    d_position, grads = linear_gradient(at, d_rows, position[None], parameters, "r_net")
    d_x, more = inputs_gradient(at, dz, (dQ, dK, dV), (x, whole, whole), parameters)
    found |= grads | more | of_feed_forward
    d_mem = () if mem is None else (np.zeros(mem.shape),)
    d_parameters = {name: found[name] for name in parameters}
    return at.out(d_x), at.out(at.stage(d_position))[0], d_parameters, *d_mem


def feed_forward_gradient(
    at: Machine, d_output: ndarray, x: ndarray, parameters: Inputs, eps: float
) -> tuple[ndarray, dict[str, ndarray]]:
    """Of what is fed forward, and of the parameters; the ReLU lets through where it gave more."""
    inner, z = feed_forward(at, x, parameters)
    dz, found = layer_norm_gradient(at, d_output, z, parameters, eps, "ff_norm")
    d_inner, grads = linear_gradient(at, dz, inner, parameters, "ff_out")
    d_given = np.where(inner > 0, at.stage(d_inner), 0)
    found |= grads | linear_gradient(at, d_given, x, parameters, "ff_in")[1]
    weight = at.read(parameters["ff_in.weight"])
    if at.order.addend == "first":
        return at.stage(at.product(d_given, weight, dz)), found
    return at.stage(dz + at.stage(at.product(d_given, weight))), found


def shifted_back(dS: ndarray) -> ndarray:
    """The gradient of the scores by the rows of position that they read."""
    N, M = dS.shape[-2:]
    return sheared(dS, np.arange(M) - np.arange(N)[:, None] + N - 1, N + M - 1)[..., :M]


def inputs_gradient(
    at: Machine,
    dz: ndarray,
    d_heads: tuple[ndarray, ...],
    inputs: tuple[ndarray, ...],
    parameters: Inputs,
) -> tuple[ndarray, dict[str, ndarray]]:
    """The gradient of x, the residual's with it, and those of qkv_net, third by third."""
    thirds = {
        f"{name}.{part}": x
        for part in ("weight", "bias")
        if parameters.get(f"qkv_net.{part}") is not None
        for name, x in zip(PARTS, np.split(parameters[f"qkv_net.{part}"], 3), strict=True)
    }
    d_parts, found = [at.stage(merge_heads(d)) for d in d_heads], {}
    for name, d, x in zip(PARTS, d_parts, inputs, strict=True):
        found |= linear_gradient(at, d, x, thirds, name)[1]
    N = dz.shape[1]
    weights = [thirds[f"{name}.weight"] for name in PARTS]
    total = added_products(at, [d[:, -N:] for d in d_parts], weights)
    joined = {
        f"qkv_net.{part}": np.concatenate([found[f"{name}.{part}"] for name in PARTS])
        for part in ("weight", "bias")
        if f"query.{part}" in found
    }
    return at.stage(dz + total), joined


def txl_stack_gradient(
    at: Machine,
    d_output: ndarray,
    d_new_mems: Any,
    x: ndarray,
    parameters: Any,
    num_heads: int,
    mems: Any,
    mem_len: int,
    eps: float = 1e-5,
    keep: ndarray | None = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    M = x.shape[1] + (0 if mems is None else mems[0].shape[1])
    position, hidden, given = positions(at, M, x.shape[-1]), at.out(at.read(x)), []
    for layer, each in enumerate(parameters):
        mem = None if mems is None else mems[layer]
        draw = keep if keep is None or keep.ndim < 5 else keep[layer % len(keep)]
        given.append((hidden, position, each, num_heads, mem, None, eps, draw, p))
        hidden = txl_layer(at, *given[-1])
    d_hidden, found = d_output, []
    for inputs in given[::-1]:
        d_hidden, _, d_parameters, *_ = txl_layer_gradient(at, d_hidden, *inputs)
        found.insert(0, d_parameters)
    d_mems = () if mems is None else ([np.zeros(mem.shape) for mem in mems],)
    return d_hidden, found, *d_mems


TRANSFORMER_XL_GRADIENTS = {
    "transformer_xl_layer_grad": txl_layer_gradient,
    "transformer_xl_grad": txl_stack_gradient,
}
