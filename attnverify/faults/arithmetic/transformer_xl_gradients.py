"""Faults of the gradients of a Transformer-XL layer and of a stack of them."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.faults.registry import add_faults, fault
from attnverify.reference import layers as staged

OURS = "this project"
LAYER, STACK = "transformer_xl_layer_grad", "transformer_xl_grad"


def right(name: str, given: dict[str, Any]) -> Any:
    """What an operation should answer."""
    return CATALOGUE[name].reference(**given)


def before_norm(given: dict[str, Any]) -> ndarray:
    """What a layer normalises."""
    forward = {name: x for name, x in given.items() if name != "d_output"}
    z: ndarray = staged.transformer_xl_layer(**forward, norm=lambda y, *rest: y)
    return z


def norm_gradient(given: dict[str, Any], variance_is_constant: bool = False) -> ndarray:
    """The gradient of what a layer normalises."""
    z, a = before_norm(given), given["d_output"] * given["parameters"]["layer_norm.weight"]
    centred = z - z.mean(-1, keepdims=True)
    root = np.sqrt((centred**2).mean(-1, keepdims=True) + given["eps"])
    n = centred / root
    slope = 0.0 if variance_is_constant else n * (n * a).mean(-1, keepdims=True)
    found: ndarray = (a - a.mean(-1, keepdims=True) - slope) / root
    return found


@fault("backward", "half of the gradient by the positions' projection", source=OURS,
       clause="the gradients of transformer_xl_attention",
       reveals="more than one key")  # fmt: skip
def transformer_xl_layer_grad_half_of_positions(**given: Any) -> Any:
    d_x, d_position, d_parameters, *rest = right(LAYER, given)
    half = {"r_net.weight": d_parameters["r_net.weight"] / 2}
    return d_x, d_position, d_parameters | half, *rest


@fault("backward", "the gradient through the residual left out", source=OURS,
       clause="The residual hands on to x beside what comes through the attention",
       reveals="F > 2")  # fmt: skip
def transformer_xl_layer_grad_without_residual(**given: Any) -> Any:
    d_x, *rest = right(LAYER, given)
    return d_x - norm_gradient(given), *rest


@fault("backward", "the norm's variance taken for a constant on the way to x",
       source=OURS, clause="the gradient of the norm, with mean(z dz)",
       reveals="F > 1")  # fmt: skip
def transformer_xl_layer_grad_constant_variance(**given: Any) -> Any:
    d_x, *rest = right(LAYER, given)
    moved = norm_gradient(given, variance_is_constant=True) - norm_gradient(given)
    return d_x + moved, *rest


@fault("backward", "the gain's gradient of numbers that are centred and not scaled",
       source=OURS,
       clause="the gain's gradient is the sum of dy z over batch and positions",
       reveals="a variance other than 1")  # fmt: skip
def transformer_xl_layer_grad_unscaled_gain(**given: Any) -> Any:
    d_x, d_position, d_parameters, *rest = right(LAYER, given)
    z = before_norm(given)
    of_gain = (given["d_output"] * (z - z.mean(-1, keepdims=True))).sum((0, 1))
    return d_x, d_position, d_parameters | {"layer_norm.weight": of_gain}, *rest


@fault("backward", "the gradients by u and v exchanged", source=OURS,
       clause="the gradients of transformer_xl_attention",
       reveals="more than one key")  # fmt: skip
def transformer_xl_layer_grad_biases_exchanged(**given: Any) -> Any:
    d_x, d_position, d_parameters, *rest = right(LAYER, given)
    exchanged = {"u": d_parameters["v"], "v": d_parameters["u"]}
    return d_x, d_position, d_parameters | exchanged, *rest


@fault("backward", "the positions' gradient of the first batch entry alone",
       source=OURS, clause="position is shared by the batch",
       reveals="B > 1, more than one key")  # fmt: skip
def transformer_xl_layer_grad_position_of_first_batch(**given: Any) -> Any:
    d_x, _, *rest = right(LAYER, given)
    first = np.zeros_like(given["d_output"])
    first[:1] = given["d_output"][:1]
    return d_x, right(LAYER, given | {"d_output": first})[1], *rest


@fault("backward", "a gradient that flows into the memory", source="this project",
       clause="The memory is a constant: its own gradient is 0", reveals="a memory")  # fmt: skip
def transformer_xl_layer_grad_into_memory(**given: Any) -> Any:
    found, mem = right(LAYER, given), given["mem"]
    if mem is None:
        return found
    alike = given | {"mem": None, "x": np.concatenate([mem, given["x"]], 1)}
    for name in ("d_output", "visible", "keep"):
        alike[name] = rows_in_front(given[name], mem.shape[1], name != "d_output")
    return *found[:3], right(LAYER, alike)[0][:, : mem.shape[1]]


def rows_in_front(x: Any, count: int, mask: bool) -> Any:
    """So many more rows before the first one of [.. N M]: visible, and kept; or zeros [B N F]."""
    if x is None or (mask and x.shape[-2] == 1):
        return x
    shape = (*x.shape[:-2], count, x.shape[-1])
    return np.concatenate([np.full(shape, mask, x.dtype), x], -2)


@fault("backward", "the layers' gradients in the order in which they are computed",
       source=OURS, clause="by the parameters of each layer", reveals="L > 1")  # fmt: skip
def transformer_xl_grad_from_the_last(**given: Any) -> Any:
    d_x, d_parameters, *rest = right(STACK, given)
    return d_x, [dict(each) for each in d_parameters[::-1]], *rest


@fault("backward", "no gradient below the last layer", source=OURS,
       clause="Layer by layer, from the last to the first", reveals="L > 1")  # fmt: skip
def transformer_xl_grad_of_last_layer(**given: Any) -> Any:
    d_x, d_parameters, *rest = right(STACK, given)
    *below, last = d_parameters
    return d_x, [{name: 0 * x for name, x in each.items()} for each in below] + [last], *rest


@fault("backward", "a gradient that flows from the new memory into the segment",
       source=OURS, clause="What arrives at the new memory goes nowhere",
       reveals="a memory, mem_len > 0")  # fmt: skip
def transformer_xl_grad_from_new_memory(**given: Any) -> Any:
    d_x, *rest = right(STACK, given)
    arriving = given["d_new_mems"]
    if arriving is not None and (kept := min(arriving[0].shape[1], d_x.shape[1])):
        d_x = d_x.copy()
        d_x[:, -kept:] += arriving[0][:, -kept:]
    return d_x, *rest


@fault("backward", "the first layer's draw for all layers in the backward pass",
       source=OURS, clause="each layer has a draw of its own",
       reveals="L > 1 and dropout")  # fmt: skip
def transformer_xl_grad_one_draw(**given: Any) -> Any:
    keep = given["keep"]
    return right(STACK, given if keep is None else given | {"keep": keep[:1]})


add_faults("backward", (
    ("transformer_xl_layer_grad_default_eps",
     "eps of 1e-5 in the backward pass, whatever is asked for", OURS,
     "The norm divides by the root of variance + eps", "eps = 1e-3",
     lambda **given: right(LAYER, given | {"eps": 1e-5})),
))  # fmt: skip
