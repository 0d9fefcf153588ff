"""
Faults of one factor: a gradient, a scale or a layer's stage that is 1 % off, told as unfused code.
No single element shows it in bfloat16.
"""

from typing import Any

import numpy as np

from attnverify.catalogue.operation import CATALOGUE
from attnverify.faults.real_sizes.table import add_fault
from attnverify.faults.registry import reference_of

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


def _gradient_off(operation: str, argument: str) -> Any:
    reference = reference_of(f"{operation}_grad")
    differentiable = [name for name in CATALOGUE[operation].axes]

    def off(**given: Any) -> Any:
        found = list(reference(**given))
        place = differentiable.index(argument) if argument != "mask" else len(differentiable)
        if place < len(found):
            found[place] = found[place] * FACTOR
        return tuple(found)

    return off


for operation, arguments in GRADIENTS.items():
    for argument in arguments:
        add_fault(
            f"{operation}_grad",
            f"{argument}_off",
            _gradient_off(operation, argument),
            kind="backward",
            words=f"a gradient by {argument} that is 1 % too large",
            clause=f"gradients by {argument}",
            reveals="any" if argument != "mask" else "a float mask",
            precision="eager",
        )


def _parameters_off(operation: str, names: tuple[str, ...]) -> Any:
    reference = reference_of(operation)

    def off(parameters: Any, **given: Any) -> Any:
        changed = {
            name: x * FACTOR if name in names and x is not None else x
            for name, x in parameters.items()
        }
        return reference(parameters=changed, **given)

    return off


def _scale_off(operation: str, factor: float) -> Any:
    reference = reference_of(operation)
    return lambda **given: reference(**given, scale=lambda D: factor / np.sqrt(D))


for operation, what, names in (
    ("multi_head_attention", "values_off", ("v_proj.weight", "v_proj.bias")),
    ("relative_multi_head_attention", "values_off", ("value.linear.weight", "value.linear.bias")),
    ("transformer_xl_layer", "positions_off", ("r_net.weight",)),
    ("transformer_xl_layer", "residual_branch_off", ("o_net.weight",)),
    ("self_attention", "values_off", ("w_value",)),
):
    add_fault(
        operation,
        what,
        _parameters_off(operation, names),
        kind="layers",
        words=f"{names[0]} 1 % too large",
        clause=operation,
        reveals="any",
        precision="eager",
    )

for operation in (
    "multi_head_attention",
    "multi_head_self_attention",
    "alibi_multi_head_attention",
    "self_attention",
):
    add_fault(
        operation,
        "scale_off",
        _scale_off(operation, FACTOR),
        kind="scale",
        words="a scale 1 % too large",
        clause=operation,
        reveals="any",
        precision="eager",
    )
