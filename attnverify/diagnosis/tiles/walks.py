"""
Mistakes of grouped, packed and paged attentions that walk over tiles of each sequence's keys: what
an online softmax does not carry from one tile to the next, a last page that is read to its end.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.catalogue.packing import heads_first, packed_pairs, seen_of_pages
from attnverify.conventions.caches.paging import own_places, there, whole_pages
from attnverify.diagnosis.mistakes.today.steps import LAW, Call, as_given, call_of, scored
from attnverify.diagnosis.tiles.scores import SIZES, Rescaling, carried, largest, not_at_all
from attnverify.inputs.recipe import Inputs
from attnverify.spec.packed import sequences

WALKED = ("grouped_attention", "packed_attention", "paged_attention")


LOST: dict[str, dict[str, Rescaling]] = {
    "an output that is not rescaled": {"of_output": not_at_all},
    "a sum that is not rescaled": {"of_sum": not_at_all},
    "nothing rescaled": {"of_sum": not_at_all, "of_output": not_at_all},
}
"""What is not rescaled: the sum, the output."""


def walking_mistakes(
    operation: Operation,
) -> Iterator[tuple[str, Callable[[Operation, Inputs], Any]]]:
    """Words and function of each mistake, in tiles of one size or of a page."""
    if operation.name not in WALKED:
        return
    of_pages = ((0, "pages"),) if operation.name == "paged_attention" else ()
    for size, tiles in (*of_pages, *((size, f"tiles of {size} keys") for size in SIZES)):
        for words, rescaling in LOST.items():
            yield f"{words} when the maximum rises, in {tiles}", partial(walked, size, rescaling)
    if of_pages:
        yield "the last page of a sequence not cut to its length", with_whole_pages


def with_whole_pages(operation: Operation, inputs: Inputs) -> Any:
    """Return output and lse with every slot of a last page seen, the rows where they were."""
    moved = {"lengths": whole_pages(inputs), "offset": own_places(inputs)}
    return operation.reference(**inputs | moved | {"page_table": there(inputs)})


def walked(size: int, rescaling: dict[str, Rescaling], operation: Operation, inputs: Inputs) -> Any:
    """Return output and lse where a tile has so many keys, of a page where that is 0."""
    output, lse = (x.copy() for x in operation.reference(**inputs))
    for rows, call in walks(operation, inputs):
        score, _ = scored(call, LAW)
        e, total = carried(score, size or inputs["key_pages"].shape[1], **rescaling)
        e, top, total = beside_sink(call.sink, e, largest(score), total)
        there = np.logical_and(call.seen.any(axis=-1, keepdims=True), total > 0)
        total = np.where(there, total, 1)
        found = e / total * call.kept() @ call.of_heads("value")
        own = as_given(operation, (found, (top + np.log(total))[..., 0], there[..., 0]))
        output[rows] = np.where(own[2][..., None], own[0], output[rows])
        lse[rows] = np.where(own[2], own[1], lse[rows])
    return output, lse


def beside_sink(
    sink: ndarray, e: ndarray, top: ndarray, total: ndarray
) -> tuple[ndarray, ndarray, ndarray]:
    """The same with a logit that has no value, which is added when all keys have been seen."""
    new = np.maximum(top, sink)
    fade = np.exp(top - new)
    return e * fade, new, total * fade + np.exp(sink - new)


def walks(operation: Operation, inputs: Inputs) -> Iterator[tuple[slice, Call]]:
    """
    Each sequence as a call of its own, its keys in the order of positions, and which rows are its
    own; of grouped attention the whole call.
    """
    if not operation.is_packed:
        yield slice(None), call_of(operation, inputs)
        return
    x = heads_first(inputs)
    for t, u, seen in tokens(operation, inputs):
        own = {"query": x["query"][:, :, t], "key": x["key"][:, :, u], "value": x["value"][:, :, u]}
        seen = np.broadcast_to(seen, (*own["query"].shape[:2], *seen.shape))
        yield t, Call(x | own, seen, seen)


def tokens(operation: Operation, inputs: Inputs) -> Iterator[tuple[slice, Any, ndarray]]:
    """Rows and keys of each sequence, of a pool its slots, and which see each other."""
    if operation.name == "paged_attention":
        W = inputs["key_pages"].shape[1]
        for b, t, seen in seen_of_pages(inputs):
            at = (inputs["page_table"][b][:, None] * W + np.arange(W)).ravel()[: seen.shape[1]]
            yield t, np.where(seen.any(0), at, 0), seen
    else:
        pairs = packed_pairs(inputs)
        for _, t, u in sequences(inputs["query_starts"], inputs["key_starts"]):
            if t.start < t.stop and u.start < u.stop:
                yield t, u, pairs[t, u]
