"""Faults of the gradients of a Transformer-XL layer and of a stack of them."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.conventions.references import reference_of as right
from attnverify.faults.changes import first, of_part, where_given, with_outputs, with_parts
from attnverify.faults.registry import OURS, add_faults, fault
from attnverify.inputs.recipe import Inputs
from attnverify.reference import layers as staged

LAYER, STACK = right("transformer_xl_layer_grad"), right("transformer_xl_grad")
ATTENTION = "the gradients of transformer_xl_attention"


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


@fault("backward", "a gradient that flows into the memory", source="this project",
       clause="The memory is a constant: its own gradient is 0", reveals="a memory")  # fmt: skip
def transformer_xl_layer_grad_into_memory(**given: Any) -> Any:
    found, mem = LAYER(**given), given["mem"]
    if mem is None:
        return found
    alike = given | {"mem": None, "x": np.concatenate([mem, given["x"]], 1)}
    for name in ("d_output", "visible", "keep"):
        alike[name] = rows_in_front(given[name], mem.shape[1], name != "d_output")
    return *found[:3], LAYER(**alike)[0][:, : mem.shape[1]]


def rows_in_front(x: Any, count: int, mask: bool) -> Any:
    """So many more rows before the first one of [.. N M]: visible, and kept; or zeros [B N F]."""
    if x is None or (mask and x.shape[-2] == 1):
        return x
    shape = (*x.shape[:-2], count, x.shape[-1])
    return np.concatenate([np.full(shape, mask, x.dtype), x], -2)


@fault("backward", "a gradient that flows from the new memory into the segment",
       source=OURS, clause="What arrives at the new memory goes nowhere",
       reveals="a memory, mem_len > 0")  # fmt: skip
def transformer_xl_grad_from_new_memory(**given: Any) -> Any:
    d_x, *rest = STACK(**given)
    arriving = given["d_new_mems"]
    if arriving is not None and (kept := min(arriving[0].shape[1], d_x.shape[1])):
        d_x = d_x.copy()
        d_x[:, -kept:] += arriving[0][:, -kept:]
    return d_x, *rest


def of_unscaled(d: Inputs, given: Inputs) -> Inputs:
    """The gain's gradient of numbers that are centred alone."""
    z = before_norm(given)
    of_gain = (given["d_output"] * (z - z.mean(-1, keepdims=True))).sum((0, 1))
    return {"layer_norm.weight": of_gain}


def of_last_layer(d: list[Inputs], given: Inputs) -> list[Inputs]:
    return [*({name: 0 * x for name, x in each.items()} for each in d[:-1]), d[-1]]


add_faults("backward", (
    ("transformer_xl_layer_grad_default_eps",
     "eps of 1e-5 in the backward pass, whatever is asked for", OURS,
     "The norm divides by the root of variance + eps", "eps = 1e-3",
     lambda **given: LAYER(**given | {"eps": 1e-5})),
    ("transformer_xl_layer_grad_half_of_positions",
     "half of the gradient by the positions' projection", OURS, ATTENTION, "more than one key",
     with_parts(LAYER, 2, lambda d, x: {"r_net.weight": d["r_net.weight"] / 2})),
    ("transformer_xl_layer_grad_without_residual", "the gradient through the residual left out",
     OURS, "The residual hands on to x beside what comes through the attention", "F > 2",
     with_outputs(LAYER, {0: lambda d, x: d - norm_gradient(x)})),
    ("transformer_xl_layer_grad_constant_variance",
     "the norm's variance taken for a constant on the way to x", OURS,
     "the gradient of the norm, with mean(z dz)", "F > 1",
     with_outputs(LAYER, {0: lambda d, x: d + (norm_gradient(x, variance_is_constant=True) -
      norm_gradient(x))})),
    ("transformer_xl_layer_grad_unscaled_gain",
     "the gain's gradient of numbers that are centred and not scaled", OURS,
     "the gain's gradient is the sum of dy z over batch and positions",
     "a variance other than 1", with_parts(LAYER, 2, of_unscaled)),
    ("transformer_xl_layer_grad_biases_exchanged", "the gradients by u and v exchanged", OURS,
     ATTENTION, "more than one key",
     with_parts(LAYER, 2, lambda d, x: {"u": d["v"], "v": d["u"]})),
    ("transformer_xl_layer_grad_position_of_first_batch",
     "the positions' gradient of the first batch entry alone", OURS,
     "position is shared by the batch", "B > 1, more than one key", of_part(LAYER, [1], first(1))),
    ("transformer_xl_grad_from_the_last",
     "the layers' gradients in the order in which they are computed", OURS,
     "by the parameters of each layer", "L > 1",
     with_outputs(STACK, {1: lambda d, x: [dict(each) for each in d[::-1]]})),
    ("transformer_xl_grad_of_last_layer", "no gradient below the last layer", OURS,
     "Layer by layer, from the last to the first", "L > 1",
     with_outputs(STACK, {1: of_last_layer})),
    ("transformer_xl_grad_one_draw",
     "the first layer's draw for all layers in the backward pass", OURS,
     "each layer has a draw of its own", "L > 1 and dropout",
     where_given(STACK, keep=lambda keep, x: keep[:1])),
))  # fmt: skip
