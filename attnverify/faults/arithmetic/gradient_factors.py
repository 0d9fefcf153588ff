"""
Faults of one factor: a gradient, a scale or a layer's stage that is 1 % off, told as unfused code.
No single element shows it in bfloat16.
"""

from typing import Any

import numpy as np

from attnverify.catalogue.operation import CATALOGUE
from attnverify.faults.changes import Function, where_given, with_outputs
from attnverify.faults.registry import OURS, add_faults, reference_of
from attnverify.inputs.recipe import Inputs

GRADIENTS = {
    "scaled_dot_product_attention": ("query", "key", "value", "mask"),
    "alibi_attention": ("query", "key", "value"),
    "transformer_xl_attention": ("query", "value", "position", "u", "v"),
    "learned_relative_attention": (
        "query",
        "key_pos_embeddings",
        "key_pos_bias",
        "query_pos_bias",
    ),
    "additive_attention": ("query", "key", "w_query", "w_score", "mask"),
}
"""The gradients that are off, one at a time."""

FACTOR = 1.01
PARAMETERS = (
    ("multi_head_attention", "values_off", ("v_proj.weight", "v_proj.bias")),
    ("relative_multi_head_attention", "values_off", ("value.linear.weight", "value.linear.bias")),
    ("transformer_xl_layer", "positions_off", ("r_net.weight",)),
    ("transformer_xl_layer", "residual_branch_off", ("o_net.weight",)),
    ("self_attention", "values_off", ("w_value",)),
)
"""Layers, and the parameters that are off together."""
SCALED = ("multi_head_", "multi_head_self_", "alibi_multi_head_", "self_")
EAGER = {"precision": "eager"}


def off(x: Any, given: Inputs) -> Any:
    return x * FACTOR


def gradient_off(operation: str, argument: str) -> Function:
    names = [*CATALOGUE[operation].axes, "mask"]
    return with_outputs(reference_of(f"{operation}_grad"), {names.index(argument): off})


def parameters_off(operation: str, names: tuple[str, ...]) -> Function:
    def changed(own: Inputs, given: Inputs) -> Inputs:
        return own | {n: own[n] * FACTOR for n in names if own.get(n) is not None}

    return where_given(reference_of(operation), parameters=changed)


def scale_off(D: int) -> float:
    return float(FACTOR / np.sqrt(D))


add_faults("backward", (
    *((f"{operation}_grad_{argument}_off", f"a gradient by {argument} that is 1 % too large", OURS,
       f"gradients by {argument}", "any" if argument != "mask" else "a float mask",
       gradient_off(operation, argument), EAGER)
      for operation, arguments in GRADIENTS.items() for argument in arguments),
))  # fmt: skip

add_faults("layers", (
    *((f"{operation}_{what}", f"{names[0]} 1 % too large", OURS, operation, "any",
       parameters_off(operation, names), EAGER) for operation, what, names in PARAMETERS),
))  # fmt: skip

add_faults("scale", (
    *((f"{name}attention_scale_off", "a scale 1 % too large", OURS, f"{name}attention", "any",
       {"scale": scale_off}, EAGER) for name in SCALED),
))  # fmt: skip
