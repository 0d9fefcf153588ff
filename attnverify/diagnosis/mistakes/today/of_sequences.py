"""Mistakes in where the rows and the keys of sequences lie that share arrays."""

import numpy as np

from attnverify.catalogue.operation import Operation
from attnverify.diagnosis.mistakes.today.steps import Mistake
from attnverify.inputs.recipe import Inputs


def lse_elsewhere(operation: Operation, inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
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


def ranges_without_padding(operation: Operation, inputs: Inputs) -> tuple[np.ndarray, ...]:
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
    found: tuple[np.ndarray, ...] = operation.reference(**inputs | pools | {"page_table": table})
    return found


OF_SEQUENCES: tuple[tuple[str, Mistake], ...] = (
    ("packed_attention",
     ("the lse of a sequence without keys stored in other rows, as if sequences were padded, its "
      "own never written", lse_elsewhere)),
    ("paged_attention",
     ("keys of each sequence that begin at the sum of the lengths before it, without the padding "
      "of their last pages", ranges_without_padding)),
)  # fmt: skip
"""By operation, words and what it returns instead."""
