"""
Correct implementations that differ from the law in every way that rounding allows: the bounds must
hold for each of them.

All are NumPy. Numbers live in `acc` (float32, or float64 for float64) and are rounded to the
storage dtype wherever the declared arithmetic says that they are written to memory. An entry is
(operation, name, function of the inputs and a dtype, PRECISION).
"""

from collections.abc import Callable
from typing import Any

from numpy import ndarray

from tests.rounding_variants.arithmetic import STYLES, Inputs, Machine, Style
from tests.rounding_variants.attention import SCORES, attention
from tests.rounding_variants.gradients import gradient
from tests.rounding_variants.layers import LAYER_STYLES, LAYERS
from tests.rounding_variants.operations import (
    op_biases,
    op_dropout,
    op_scores,
    op_slopes,
    op_softmax,
    positions,
)
from tests.rounding_variants.scores import (
    additive_parts,
    dot_scores,
    learned_all_scores,
    txl_all_scores,
)


def layer(function: Callable[..., Any], style: Style) -> Callable[[Inputs, str], Any]:
    return lambda inputs, dtype: function(Machine(dtype, style), **inputs)


Entry = tuple[str, str, Callable[[Inputs, str], Any], Any]
SCORE_OPERATIONS: dict[str, Callable[..., ndarray]] = {
    "scaled_dot_product_score": dot_scores,
    "additive_score": lambda at, **inputs: additive_parts(at, **inputs)[1],
    "transformer_xl_score": txl_all_scores,
    "learned_relative_score": learned_all_scores,
}
ROWWISE = (
    "eager",
    "sloppy",
    "eager_divided",
    "wide",
    "wide_reversed",
    "fused_row",
    "tf32",
    "narrow",
)


def build() -> list[Entry]:
    zoo: list[Entry] = []
    for name, style in STYLES.items():
        zoo += [(op, name, attention(op, style), style.declared) for op in SCORES]
        zoo += [
            (f"{op}_grad", name, gradient(op, style), style.declared)
            for op in SCORES
            if not style.split
        ]
        zoo += [("softmax", name, op_softmax(style), style.declared)] if name in ROWWISE else []
        zoo += [
            (op, name, op_scores(f, style), style.declared)
            for op, f in SCORE_OPERATIONS.items()
            if name in ROWWISE
        ]
    zoo += [
        (op, name, layer(f, style), style.declared)
        for op, f in LAYERS.items()
        for name, style in LAYER_STYLES.items()
    ]
    for flag, how in ((True, "one_way"), (False, "the_other")):
        zoo += [
            ("dropout", how, op_dropout(flag), "eager"),
            ("sinusoidal_positions", how, positions(flag), "eager"),
        ]
        zoo += [("get_slopes", how, op_slopes(flag), "eager")]
    return [*zoo, ("get_alibi_biases", "counted", op_biases, "eager")]


ZOO = build()
__all__ = ["STYLES", "ZOO", "Machine", "Style"]
