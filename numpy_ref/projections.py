"""Projections, heads, the layer norm and the feed-forward, which the layers share."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

Parameters = Mapping[str, ndarray]


def linear(x: ndarray, parameters: Parameters, name: str) -> ndarray:
    y: ndarray = x @ parameters[f"{name}.weight"].T
    bias = parameters.get(f"{name}.bias")
    return y if bias is None else y + bias


def linear_grad(
    d_y: ndarray, x: ndarray, parameters: Parameters, name: str
) -> tuple[ndarray, dict[str, ndarray]]:
    """The gradients of :func:`linear` by x and by its parameters: over all rows in one product."""
    weight, bias = f"{name}.weight", f"{name}.bias"
    rows = d_y.reshape(-1, d_y.shape[-1])
    grads = {weight: rows.T @ x.reshape(-1, x.shape[-1])}
    if parameters.get(bias) is not None:
        grads[bias] = rows.sum(axis=0)
    return d_y @ parameters[weight], grads


def projections_grad(
    d_heads: Sequence[ndarray],
    inputs: Sequence[ndarray],
    parameters: Parameters,
    names: Sequence[str],
) -> tuple[list[ndarray], dict[str, ndarray]]:
    """The gradients by the inputs of some projections, from those by their heads; and theirs."""
    d_inputs: list[ndarray] = []
    d_parameters: dict[str, ndarray] = {}
    for d, x, name in zip(d_heads, inputs, names, strict=True):
        d_x, grads = linear_grad(side_by_side(d), x, parameters, name)
        d_inputs.append(d_x)
        d_parameters |= grads
    return d_inputs, d_parameters


def in_order(grads: Mapping[str, ndarray], parameters: Parameters) -> dict[str, ndarray]:
    """The gradients of the parameters in the parameters' order."""
    return {name: grads[name] for name in parameters if name in grads}


def seen_alone(x: Float[ndarray, "B M F"], hidden: Bool[ndarray, "B H N M"]) -> ndarray:
    """The keys or values that some query of some head sees, 0 in place of the others."""
    unseen: ndarray = np.all(hidden, axis=(1, 2))
    return np.where(unseen[..., None], 0, x)


def heads(x: Float[ndarray, "... N F"], H: int) -> Float[ndarray, "... H N D"]:
    return x.reshape(*x.shape[:-1], H, -1).swapaxes(-2, -3)


def side_by_side(x: Float[ndarray, "B H N D"]) -> Float[ndarray, "B N F"]:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def layer_norm(x: ndarray, weight: ndarray, bias: ndarray | None, eps: float) -> ndarray:
    x = x - x.mean(axis=-1, keepdims=True)
    variance = np.vecdot(x, x)[..., None] / x.shape[-1]
    y = x / np.sqrt(variance + eps) * weight
    return y if bias is None else y + bias


def layer_norm_grad(
    d_y: ndarray, x: ndarray, parameters: Parameters, eps: float, name: str = "layer_norm"
) -> tuple[ndarray, dict[str, ndarray]]:
    """The gradients of :func:`layer_norm` by x and by its parameters."""
    gain, bias = f"{name}.weight", f"{name}.bias"
    x = x - x.mean(axis=-1, keepdims=True)
    root = np.sqrt(np.vecdot(x, x)[..., None] / x.shape[-1] + eps)
    x = x / root
    d_x = d_y * parameters[gain]
    slope = np.vecdot(x, d_x)[..., None] / x.shape[-1]
    grads = {gain: (d_y * x).sum((0, 1))}
    if parameters.get(bias) is not None:
        grads[bias] = d_y.sum((0, 1))
    return (d_x - d_x.mean(axis=-1, keepdims=True) - x * slope) / root, grads


def feed_forward(x: ndarray, parameters: Parameters, eps: float) -> ndarray:
    """The feed-forward of each position, where the layer has one; else x."""
    if "ff_in.weight" not in parameters:
        return x
    inner = np.maximum(linear(x, parameters, "ff_in"), 0)
    y = x + linear(inner, parameters, "ff_out")
    return layer_norm(y, parameters["ff_norm.weight"], parameters.get("ff_norm.bias"), eps)


def feed_forward_grad(
    d_output: ndarray, x: ndarray, parameters: Parameters, eps: float
) -> tuple[ndarray, dict[str, ndarray]]:
    """The gradients of :func:`feed_forward` by x and by its parameters."""
    if "ff_in.weight" not in parameters:
        return d_output, {}
    inner = np.maximum(linear(x, parameters, "ff_in"), 0)
    y = x + linear(inner, parameters, "ff_out")
    d_y, d_parameters = layer_norm_grad(d_output, y, parameters, eps, "ff_norm")
    d_inner, grads = linear_grad(d_y, inner, parameters, "ff_out")
    d_inner[inner == 0] = 0
    d_x, more = linear_grad(d_inner, x, parameters, "ff_in")
    return d_y + d_x, d_parameters | grads | more
