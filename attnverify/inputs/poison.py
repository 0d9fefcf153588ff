"""
Poison: what stands in hidden slots. NaN and infinity, or a number large enough to be noticed, where
nothing may look; and NaN and infinity in what some queries see and others do not: a key, its value,
a row of a position table, or a position of a sequence that attends to itself.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy import ndarray

from attnverify.catalogue.packing import heads_first, of_no_sequence, tokens_first
from attnverify.inputs.masks import visible_pairs

if TYPE_CHECKING:
    from attnverify.catalogue.operation import Operation
    from attnverify.inputs.recipe import Inputs

FOR_SOME = {"nan for some": np.nan, "inf for some": np.inf, "-inf for some": -np.inf}
"""Poison in slots that some rows see, by the name that a recipe gives it."""

FROM_ALL = {"nan": np.nan, "inf": np.inf, "finite": None}
"""Poison in slots that no row sees; of a table of pages the entries there are any number too."""

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
    number = FROM_ALL[poison] or FINITE.get(dtype, 1e30)
    poison_padded_mask(inputs, number)
    visible = visible_pairs(operation, inputs)
    if visible is None or "key" not in inputs:
        if visible is not None and "score" in inputs:
            inputs["score"][~visible] = number
        return
    unseen = np.logical_not(np.any(rows_of_keys(inputs["key"], visible), axis=-2))
    if inputs["key"].ndim == 3 and unseen.ndim == 3:
        unseen = np.all(unseen, axis=1)
    if operation.is_packed:
        outside = of_no_sequence(inputs["query_starts"], visible.shape[-2])
        inputs["query"][:, :, outside] = number
    for name in ("key", "value"):
        if name in inputs and inputs[name].shape[:-1] == unseen.shape:
            inputs[name][unseen] = number
    for name, rows in unread_table_rows(operation, inputs, visible).items():
        inputs[name][rows] = number


def clear_hidden_slots(inputs: "Inputs", operation: "Operation") -> "Inputs":
    """Return somebody's arguments with 0 for NaN and infinity in the slots that no row sees."""
    arrays = {name: x for name, x in inputs.items() if isinstance(x, ndarray)}
    wild = {name: ~np.isfinite(x) for name, x in arrays.items() if x.dtype.kind == "f"}
    if not any(where.any() for name, where in wild.items() if "mask" not in name):
        return inputs
    marked = inputs | {name: x.copy() for name, x in arrays.items()}
    marked = heads_first(marked) if operation.lies_otherwise else marked
    poison_hidden_slots(marked, operation, "finite", "float64", np.random.default_rng(0))
    marked = tokens_first(marked) if operation.lies_otherwise else marked
    hidden = {name: where & np.isfinite(marked[name]) for name, where in wild.items()}
    cleared = {name: np.where(x, 0.0, inputs[name]) for name, x in hidden.items() if x.any()}
    return inputs | cleared if cleared else inputs


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
    found = dict[str, tuple[ndarray, ...]]()
    for name, row, count in rows_read(operation, inputs, visible):
        heads, rows = np.nonzero(~pairs_that_read(visible, row, count).any((0, 2)))
        found[name] = (heads, rows) if name == "position" else (rows, heads)
    return found


def plant_for_some(
    inputs: "Inputs", operation: "Operation", number: float, rng: np.random.Generator
) -> None:
    """
    Write the number to one slot of each head that some rows see, and of which a row that sees
    another key does not; in place, and nothing where there is no such slot.
    """
    visible = visible_pairs(operation, inputs)
    if visible is None:
        return
    if "parameters" in inputs:
        number = np.nan  # whether a projection of infinity is a number hangs on its order
    if "key" not in inputs:
        plant_in_sequence(inputs["x"], visible, number, rng)
        return
    tables = partly_read_rows(operation, inputs, visible, rng)
    rows = partly_seen(rows_of_keys(inputs["key"], visible_of_keys(inputs["key"], visible)))
    of_keys = [("key",), ("value",), ("key", "value")] if rows.any() or not tables else []
    choices = [*of_keys, *((name,) for name in tables)]
    chosen = choices[rng.integers(len(choices))]
    slots = one_of(rows, rng)
    if "w_key" in inputs and "key" in chosen:
        number = np.nan  # tanh makes a number of infinity
    for name in chosen:
        inputs[name][tables.get(name, slots)] = number


def visible_of_keys(key: ndarray, visible: ndarray) -> ndarray:
    """Which pairs see each other [B N M] in some head, where the heads share their keys."""
    return np.asarray(visible.any(1)) if visible.ndim > key.ndim else visible


def rows_of_keys(key: ndarray, visible: ndarray) -> ndarray:
    """Pairs [B G r*N M] of each head of keys, with the rows of all heads that share it."""
    if visible.ndim != 4 or key.ndim != 4:
        return visible
    return visible.reshape(*key.shape[:2], -1, visible.shape[-1])


def partly_seen(visible: ndarray) -> ndarray:
    """Tell of each key [... M] whether a row sees it, and a row that sees another does not."""
    others = visible.any(-1, keepdims=True) & ~visible
    return np.logical_and(visible.any(-2), others.any(-2))


def one_of(partly: ndarray, rng: np.random.Generator) -> ndarray:
    """Keep one True, drawn, of each last axis that has any."""
    drawn = np.where(partly, rng.random(partly.shape), -1.0)
    return partly & (drawn == drawn.max(-1, keepdims=True))


def plant_in_sequence(
    x: ndarray, visible: ndarray, number: float, rng: np.random.Generator
) -> None:
    """Write the number to a position of x; its own row does not count as one that sees it."""
    pairs = visible_of_keys(x, visible)[..., -x.shape[1] :]
    others = visible_of_keys(x, visible).any(-1, keepdims=True) & ~pairs
    itself = np.eye(x.shape[1], dtype=bool)
    partly = np.logical_and((pairs & ~itself).any(-2), (others & ~itself).any(-2))
    x[one_of(partly, rng)] = number


def partly_read_rows(
    operation: "Operation", inputs: "Inputs", visible: ndarray, rng: np.random.Generator
) -> dict[str, tuple[ndarray, ...]]:
    """Choose a row of each head's position table that some queries read, and others do not."""
    found = dict[str, tuple[ndarray, ...]]()
    for name, row, count in rows_read(operation, inputs, visible):
        reads = pairs_that_read(visible, row, count)
        others = visible.any(-1, keepdims=True) & ~reads
        partly = np.logical_and(reads.any((0, 2)), others.any((0, 2)))
        heads, rows = np.nonzero(one_of(partly, rng))
        found[name] = (heads, rows) if name == "position" else (rows, heads)
    return found


def rows_read(
    operation: "Operation", inputs: "Inputs", visible: ndarray
) -> list[tuple[str, ndarray, int]]:
    """Of each position table the row that each pair reads [N M], and how many there are."""
    N, M = visible.shape[-2:]
    i, j = np.arange(N)[:, None], np.arange(M)
    if operation.is_attention and "position" in inputs:
        return [("position", N - 1 - i + j, M)]
    if not (operation.is_attention and "key_pos_bias" in inputs):
        return []
    P = len(inputs["key_pos_bias"]) // 2
    row = P + j - i - (M - N if inputs["align"] == "end" else 0)
    return [(name, row, 2 * P) for name in ("key_pos_embeddings", "key_pos_bias")]


def pairs_that_read(visible: ndarray, row: ndarray, count: int) -> ndarray:
    """Tell [B H N count] which table rows a query reads for the keys that it sees."""
    reads = np.zeros((*visible.shape[:-1], count), bool)
    b, h, i, j = np.nonzero(visible)
    reads[b, h, i, row[i, j]] = True
    return reads
