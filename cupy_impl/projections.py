"""Projections, heads, the layer norm and the feed-forward, which the layers share."""

from collections.abc import Mapping, Sequence
from typing import Any

import cupy
from jaxtyping import Bool, Float

from .arrays import Array, narrow, wide
from .attention import present
from .scores import over_rows

Parameters = Mapping[str, Array]


def linear(x: Array, parameters: Parameters, name: str) -> Array:
    return affine(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))


def affine(x: Array, weight: Array, bias: Array | None) -> Array:
    y = x @ weight.T
    if bias is not None:
        y += bias
    return y


def linear_grad(
    d_y: Array, x: Array, parameters: Parameters, name: str
) -> tuple[Array, dict[str, Array]]:
    """The gradients of :func:`linear` by x and by its parameters, those that are there."""
    weight, bias = f"{name}.weight", f"{name}.bias"
    grads = {weight: over_rows(d_y, x)}
    if parameters.get(bias) is not None:
        grads[bias] = d_y.reshape(-1, d_y.shape[-1]).sum(axis=0)
    return d_y @ parameters[weight], grads


def inputs_grad(
    d_heads: Sequence[Array],
    inputs: Sequence[Array],
    weights: Parameters,
    names: Sequence[str],
    is_seen: Bool[Array, "B M"] | None,
) -> tuple[list[Array], dict[str, Array]]:
    """
    The gradients by query, key and value, in their dtypes, from those by their heads; and those of
    their projections. What no head sees is left out.
    """
    query, key, value = wide(*inputs)
    if is_seen is not None:
        key, value = present(key, is_seen), present(value, is_seen)
    d_inputs: list[Array] = []
    d_parameters: dict[str, Array] = {}
    for name, x, d, given in zip(names, (query, key, value), d_heads, inputs, strict=True):
        d_x, grads = linear_grad(merged(d), x, weights, name)
        d_inputs.append(narrow(d_x, given.dtype))
        d_parameters |= grads
    return d_inputs, d_parameters


def narrowed(grads: Mapping[str, Array], parameters: Parameters) -> dict[str, Array]:
    """The gradients of the parameters, each in its parameter's dtype and in the order of these."""
    return {
        name: narrow(grads[name], weight.dtype)
        for name, weight in parameters.items()
        if name in grads
    }


def heads(x: Array, H: int) -> Float[Array, "... H N D"]:
    return x.reshape(*x.shape[:-1], H, x.shape[-1] // H).swapaxes(-3, -2)


def merged(x: Array) -> Float[Array, "B N F"]:
    B, H, N, D = x.shape
    return x.swapaxes(1, 2).reshape(B, N, H * D)


def layer_norm(x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = cupy.get_array_module(x).sqrt(
        (centred * centred).mean(axis=-1, keepdims=True) + float(eps)
    )
    y = weight * centred / deviation
    return y if bias is None else y + bias


def layer_norm_grad(
    d_y: Array, x: Array, parameters: Parameters, eps: float, name: str = "layer_norm"
) -> tuple[Array, dict[str, Array]]:
    """The gradients of :func:`layer_norm` by x and by its parameters."""
    centred = x - x.mean(axis=-1, keepdims=True)
    rstd = 1 / cupy.get_array_module(x).sqrt(
        (centred * centred).mean(axis=-1, keepdims=True) + float(eps)
    )
    centred *= rstd
    d_x = d_y * parameters[f"{name}.weight"]
    grads = {f"{name}.weight": (d_y * centred).sum(axis=(0, 1))}
    if parameters.get(f"{name}.bias") is not None:
        grads[f"{name}.bias"] = d_y.sum(axis=(0, 1))
    slope = (centred * d_x).mean(axis=-1, keepdims=True)
    d_x -= d_x.mean(axis=-1, keepdims=True) + centred * slope
    return d_x * rstd, grads


def feed_forward(x: Array, parameters: Parameters, eps: float) -> Array:
    """Two linear maps, the ReLU between them in place; then residual and norm."""
    inner = linear(x, parameters, "ff_in")
    cupy.get_array_module(x).maximum(inner, 0, out=inner)
    y = x + linear(inner, parameters, "ff_out")
    return layer_norm(y, parameters["ff_norm.weight"], parameters.get("ff_norm.bias"), eps)


def feed_forward_grad(
    d_output: Array, x: Array, parameters: Parameters, eps: float
) -> tuple[Array, dict[str, Array]]:
    """The gradients of :func:`feed_forward` by x and by its parameters; forward once more."""
    inner = linear(x, parameters, "ff_in")
    cupy.get_array_module(x).maximum(inner, 0, out=inner)
    y = x + linear(inner, parameters, "ff_out")
    d_y, d_parameters = layer_norm_grad(d_output, y, parameters, eps, "ff_norm")
    d_inner, grads = linear_grad(d_y, inner, parameters, "ff_out")
    d_inner *= inner > 0
    d_x, more = linear_grad(d_inner, x, parameters, "ff_in")
    return d_y + d_x, d_parameters | grads | more


def widened(parameters: Parameters) -> dict[str, Any]:
    return dict(zip(parameters, wide(*parameters.values()), strict=True))
