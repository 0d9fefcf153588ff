"""
References of operations, which are not imported before they are called.
"""

from collections.abc import Callable
from typing import Any

from attnverify.catalogue.operation import CATALOGUE


def reference_of(name: str) -> Callable[..., Any]:
    """Return the reference of an operation, which is not imported before it is called."""
    return lambda *arguments, **named: CATALOGUE[name].reference(*arguments, **named)


causal_mask, merge_masks, update_mems = (
    reference_of(name) for name in ("causal_mask", "merge_masks", "update_mems")
)
get_slopes, get_alibi_biases = reference_of("get_slopes"), reference_of("get_alibi_biases")
rel_shift, shift_right, sinusoidal_positions = (
    reference_of(name) for name in ("rel_shift", "shift_right", "sinusoidal_positions")
)
