"""Mistakes in where the rows and the keys of sequences lie that share arrays."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.diagnosis.mistakes.today.steps import Mistake
from attnverify.inputs.recipe import Inputs


def lse_elsewhere(operation: Operation, inputs: Inputs) -> tuple[ndarray, ndarray]:
    """
    A sequence without keys stores its lse where padded sequences have theirs, (b H + h) max(n), in
    an array [H T] that begins with 0; the others follow and precede it.
    """
    output, lse = operation.reference(**inputs)
    (T, H), starts = lse.shape, inputs["query_starts"]
    n, m = np.diff(starts), np.diff(inputs["key_starts"])
    own, flat = (
        lse.T.ravel(),
        np.where(np.isin(np.arange(T), np.arange(starts[0], starts[-1])), 0.0, -np.inf),
    )
    flat = np.tile(flat, H)
    for b, h in np.ndindex(len(n), H):
        at = (b * H + h) * n.max() if m[b] == 0 else h * T + starts[b]
        place = slice(at, max(at, min(at + n[b], flat.size)))
        source = h * T + starts[b]
        flat[place] = own[source : source + n[b]][: place.stop - place.start]
    return output, flat.reshape(H, T).T


def ranges_without_padding(operation: Operation, inputs: Inputs) -> tuple[ndarray, ...]:
    """
    Of the slots of all pages that are looked at, laid end to end, each sequence takes those behind
    the sum of the lengths before it.
    """
    W, (B, Y), lengths = inputs["key_pages"].shape[1], inputs["page_table"].shape, inputs["lengths"]
    used = -(-lengths // W)
    named = np.concatenate(
        [row[:count] for row, count in zip(inputs["page_table"], used, strict=True)]
    )
    slots = (named[:, None] * W + np.arange(W)).ravel()
    own = np.zeros((B, Y * W), np.int64)
    for b, (begin, length) in enumerate(zip(np.cumsum(lengths) - lengths, lengths, strict=True)):
        own[b, :length] = slots[begin : begin + length]
    pools = {
        name: inputs[name]
        .reshape(-1, *inputs[name].shape[2:])[own]
        .reshape(B * Y, *inputs[name].shape[1:])
        for name in ("key_pages", "value_pages")
    }
    table = np.arange(B * Y).reshape(B, Y).astype(inputs["page_table"].dtype)
    found: tuple[ndarray, ...] = operation.reference(**inputs | pools | {"page_table": table})
    return found


def with_lengths(
    change: Callable[[ndarray, int], ndarray],
    is_moved: bool,
    operation: Operation,
    inputs: Inputs,
) -> Any:
    """Other lengths, from pages of W slots; rows stand where they stood, or move with the ends."""
    lengths, offset = inputs["lengths"], inputs.get("offset")
    if offset is None and not is_moved:
        offset = lengths - np.diff(inputs["query_starts"])
    new = change(lengths, inputs["key_pages"].shape[1]).astype(lengths.dtype)
    return operation.reference(**inputs | {"lengths": new, "offset": offset})


LENGTHS: tuple[tuple[str, Callable[[ndarray, int], ndarray]], ...] = (
    ("the last page lost where it is full",
     lambda lengths, W: np.where(lengths % W == 0, np.maximum(lengths - W, 0), lengths)),
    ("the last page lost, full or not", lambda lengths, W: np.maximum(lengths - 1, 0) // W * W),
    ("the last key of each sequence lost", lambda lengths, W: np.maximum(lengths - 1, 0)),
    ("the last key lost where it fills a page",
     lambda lengths, W: lengths - ((lengths % W == 0) & (lengths > 0))),
)  # fmt: skip
"""Of sequences in pages, in words, and their lengths instead."""
OF_SEQUENCES: tuple[tuple[str, Mistake], ...] = (
    ("packed_attention",
     ("the lse of a sequence without keys stored in other rows, as if sequences were padded, its "
      "own never written", lse_elsewhere)),
    ("paged_attention",
     ("keys of each sequence that begin at the sum of the lengths before it, without the padding "
      "of their last pages", ranges_without_padding)),
    *(
        ("paged_attention", (words + moved, partial(with_lengths, change, bool(moved))))
        for words, change in LENGTHS
        for moved in ("", ", and rows as many positions back")
    ),
)  # fmt: skip
"""By operation, words and what it returns instead."""
