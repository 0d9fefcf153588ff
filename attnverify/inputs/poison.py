"""
Poison: what stands in hidden slots, where nothing may look. NaN and infinity, or a number large
enough to be noticed.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy import ndarray

from attnverify.inputs.masks import visible_pairs
from attnverify.inputs.partly_hidden import FOR_SOME, pairs_that_read, plant_for_some, rows_read

if TYPE_CHECKING:
    from attnverify.catalogue.operation import Operation
    from attnverify.inputs.recipe import Inputs

FINITE = {"float16": 1e3}
"""1e30, but where the product with an ordinary number would not be finite any more."""


def poison_hidden_slots(
    inputs: "Inputs", operation: "Operation", poison: str, dtype: str, rng: np.random.Generator
) -> None:
    """
    Write the poison to the keys, values and table rows that no query of their head sees, in place;
    where it is one for some, to those that some queries see and others do not.
    """
    if poison in FOR_SOME:
        plant_for_some(inputs, operation, FOR_SOME[poison], rng)
        return
    number = {"nan": np.nan, "inf": np.inf, "finite": FINITE.get(dtype, 1e30)}[poison]
    poison_padded_mask(inputs, number)
    visible = visible_pairs(operation, inputs)
    if visible is None or "key" not in inputs:
        if visible is not None and "score" in inputs:
            inputs["score"][~visible] = number
        return
    unseen = np.logical_not(np.any(visible, axis=-2))
    if inputs["key"].ndim == 3 and unseen.ndim == 3:
        unseen = np.all(unseen, axis=1)
    for name in ("key", "value"):
        if name in inputs and inputs[name].shape[:-1] == unseen.shape:
            inputs[name][unseen] = number
    for name, rows in unread_table_rows(operation, inputs, visible).items():
        inputs[name][rows] = number


def poison_padded_mask(inputs: "Inputs", number: float) -> None:
    """Write the poison to a float attn_mask wherever the padding hides the key, in place."""
    mask, padding = inputs.get("attn_mask"), inputs.get("key_padding_mask")
    if mask is None or padding is None or mask.dtype == bool:
        return
    hidden = padding.all(axis=0)
    if mask.ndim == 3:
        hidden = np.repeat(padding, len(mask) // len(padding), axis=0)[:, None]
    mask[np.broadcast_to(hidden, mask.shape)] = number


def unread_table_rows(
    operation: "Operation", inputs: "Inputs", visible: ndarray
) -> dict[str, tuple[ndarray, ...]]:
    """Return the rows of position tables that no visible pair reads, as indices of each table."""
    found = {}
    for name, row, count in rows_read(operation, inputs, visible):
        heads, rows = np.nonzero(~pairs_that_read(visible, row, count).any((0, 2)))
        found[name] = (heads, rows) if name == "position" else (rows, heads)
    return found
