"""
Poison: what stands in hidden slots, where nothing may look. NaN and infinity, or a number large
enough to be noticed.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy import ndarray

from attnverify.inputs.masks import visible_pairs

if TYPE_CHECKING:
    from attnverify.catalogue.operation import Operation
    from attnverify.inputs.recipe import Inputs

FINITE = {"float16": 1e3}
"""1e30, but where the product with an ordinary number would not be finite any more."""


def poison_hidden_slots(inputs: "Inputs", operation: "Operation", poison: str, dtype: str) -> None:
    """
    Write the poison to the keys, values and table rows that no query of their head sees, in place.
    """
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
    N, M = visible.shape[-2:]
    i, j = np.arange(N)[:, None], np.arange(M)
    if operation.is_attention and "position" in inputs:
        heads, rows = unread_rows_of_table(visible, N - 1 - i + j, M)
        return {"position": (heads, rows)}
    if not (operation.is_attention and "key_pos_bias" in inputs):
        return {}
    P = len(inputs["key_pos_bias"]) // 2
    heads, rows = unread_rows_of_table(
        visible, P + j - i - (M - N if inputs["align"] == "end" else 0), 2 * P
    )
    return {"key_pos_embeddings": (rows, heads), "key_pos_bias": (rows, heads)}


def unread_rows_of_table(visible: ndarray, row: ndarray, count: int) -> tuple[ndarray, ...]:
    """(head, row) of the table rows that no visible pair (i, j) of that head reads at row[i, j]."""
    B, H, N, M = visible.shape
    read = np.zeros((H, count), bool)
    b, h, i, j = np.nonzero(visible)
    read[h, row[i, j]] = True
    return np.nonzero(~read)
