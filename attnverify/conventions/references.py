"""
References of operations, which are not imported before they are called.
"""

from collections.abc import Callable
from typing import Any

from attnverify.catalogue.operation import CATALOGUE


def reference_of(name: str) -> Callable[..., Any]:
    """Return the reference of an operation, which is not imported before it is called."""

    def reference(*arguments: Any, **named: Any) -> Any:
        return CATALOGUE[name].reference(*arguments, **named)

    reference.__name__ = name
    return reference


causal_mask, merge_masks, update_mems, visible_keys = (
    reference_of(name) for name in ("causal_mask", "merge_masks", "update_mems", "visible_keys")
)
get_slopes, get_alibi_biases = reference_of("get_slopes"), reference_of("get_alibi_biases")
rel_shift, shift_right, sinusoidal_positions = (
    reference_of(name) for name in ("rel_shift", "shift_right", "sinusoidal_positions")
)
