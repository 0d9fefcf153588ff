"""
What the layers are made of besides attention: projections, heads side by side, the layer norm,
the position-wise feed-forward.

No chapter of its own: :mod:`layers` has the operations.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

Parameters = Mapping[str, ndarray]


def linear(x: ndarray, parameters: Parameters, name: str) -> ndarray:
    r"""A projection, :math:`y_g = \sum_f W_{gf} x_f + b_g`."""
    y = np.einsum("...f,gf->...g", x, parameters[f"{name}.weight"])
    return y + parameters[f"{name}.bias"] if parameters.get(f"{name}.bias") is not None else y


def linear_grad(
    d_y: ndarray, x: ndarray, parameters: Parameters, name: str
) -> tuple[ndarray, dict[str, ndarray]]:
    r"""
    The gradients of :func:`linear` by x, and by its weight and bias under their names.

    .. math:: \bar x_f = \sum_g \bar y_g W_{gf}, \qquad \bar W_{gf} = \sum_i \bar y_{ig} x_{if},
              \qquad \bar b_g = \sum_i \bar y_{ig}

    with i for batch and position together. A bias that is absent has no gradient.
    """
    weight, bias = f"{name}.weight", f"{name}.bias"
    rows_y, rows_x = d_y.reshape(-1, d_y.shape[-1]), x.reshape(-1, x.shape[-1])
    grads = {weight: np.einsum("ig,if->gf", rows_y, rows_x)}
    if parameters.get(bias) is not None:
        grads[bias] = rows_y.sum(0)
    return np.einsum("...g,gf->...f", d_y, parameters[weight]), grads


def split_heads(x: ndarray, H: int) -> Float[ndarray, "B H N D"]:
    """[B N F] becomes [B H N D]: head h has the columns h D ... h D + D - 1."""
    B, N, F = x.shape
    return x.reshape(B, N, H, F // H).swapaxes(1, 2)


def merge_heads(x: ndarray) -> Float[ndarray, "B N F"]:
    """[B H N D] becomes [B N F], the inverse of :func:`split_heads`."""
    B, H, N, D = x.shape
    return x.swapaxes(1, 2).reshape(B, N, H * D)


def layer_norm(x: ndarray, weight: ndarray, bias: ndarray | None, eps: float) -> ndarray:
    r"""
    Mean 0 and variance 1 over the last axis,
    :math:`y = \gamma (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta`.

    1. The variance is the mean of the squares: it divides by F, not by F - 1.
    """
    centred = x - x.mean(axis=-1, keepdims=True)
    y = weight * centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return y if bias is None else y + bias


def layer_norm_grad(
    d_y: ndarray, x: ndarray, parameters: Parameters, eps: float, name: str = "layer_norm"
) -> tuple[ndarray, dict[str, ndarray]]:
    r"""
    The gradients of :func:`layer_norm` by x, and by its gain and bias under their names.

    With :math:`z = (x - \mu) / \sqrt{\sigma^2 + \epsilon}` and :math:`\bar z = \gamma \bar y`,

    .. math:: \bar x = \frac{\bar z - \text{mean}(\bar z) - z\, \text{mean}(z \bar z)}
              {\sqrt{\sigma^2 + \epsilon}}, \qquad \bar\gamma = \sum_i \bar y_i z_i, \qquad
              \bar\beta = \sum_i \bar y_i
    """
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    z, d_z = centred / deviation, d_y * parameters[f"{name}.weight"]
    mean, slope = (each.mean(axis=-1, keepdims=True) for each in (d_z, z * d_z))
    grads = {f"{name}.weight": (d_y * z).sum((0, 1))}
    if parameters.get(f"{name}.bias") is not None:
        grads[f"{name}.bias"] = d_y.sum((0, 1))
    return (d_z - mean - z * slope) / deviation, grads


def relu(x: ndarray) -> ndarray:
    r""":math:`\max(x, 0)`; a complex number goes by its real part."""
    return np.where(x.real <= 0, 0, x)


def relu_grad(d_y: ndarray, x: ndarray) -> ndarray:
    """The gradient of :func:`relu`, which is 0 at 0."""
    return np.where(x <= 0, 0, d_y)


def feed_forward(x: ndarray, parameters: Parameters, eps: float) -> ndarray:
    r"""
    Two linear maps with a ReLU between them, residual, layer norm, for each position by itself.

    .. math:: y = \text{layer\_norm}\big(x + \max(x W_1^\top + b_1, 0)\, W_2^\top + b_2\big)
    """
    inner = relu(linear(x, parameters, "ff_in"))
    y = x + linear(inner, parameters, "ff_out")
    return layer_norm(y, parameters["ff_norm.weight"], parameters.get("ff_norm.bias"), eps)


def feed_forward_grad(
    d_output: ndarray, x: ndarray, parameters: Parameters, eps: float
) -> tuple[ndarray, dict[str, ndarray]]:
    r"""
    The gradients of :func:`feed_forward` by x, and by its parameters under their names.

    1. The derivative of the ReLU is 0 where what it is given is 0.
    """
    given = linear(x, parameters, "ff_in")
    y = x + linear(relu(given), parameters, "ff_out")
    d_y, d_norm = layer_norm_grad(d_output, y, parameters, eps, "ff_norm")
    d_inner, d_out = linear_grad(d_y, relu(given), parameters, "ff_out")
    d_x, d_in = linear_grad(relu_grad(d_inner, given), x, parameters, "ff_in")
    return d_y + d_x, d_in | d_out | d_norm


def in_order(gradients: Mapping[str, Any], parameters: Parameters) -> dict[str, Any]:
    """The gradients by the parameters, in the order of the parameters; an absent one has none."""
    return {name: gradients[name] for name in parameters if name in gradients}


def present(x: ndarray, visible: Bool[ndarray, "B H N M"]) -> ndarray:
    """Keys or values [B M F], with 0 for those that no query of any head sees: they are absent."""
    seen: ndarray = np.any(visible, axis=(1, 2))
    return np.where(seen[..., None], x, 0)
