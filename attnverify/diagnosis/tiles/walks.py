"""
Mistakes of grouped, packed and paged attentions that walk over tiles of each sequence's keys: what
an online softmax does not carry from one tile to the next, a last page that is read to its end.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.catalogue.packing import packed_pairs, seen_of_pages
from attnverify.conventions.caches.paging import there, whole_pages
from attnverify.diagnosis.tiles.scores import running
from attnverify.inputs.masks import visible_pairs
from attnverify.inputs.recipe import Inputs
from attnverify.spec.packed import sequences

WALKED = ("grouped_attention", "packed_attention", "paged_attention")
SIZES = (16, 32, 64, 128, 8, 4)
LOST = {
    "an output that is not rescaled": (True, False),
    "a sum that is not rescaled": (False, True),
    "nothing rescaled": (False, False),
}
"""What is rescaled: the sum, the output."""


@dataclass(frozen=True)
class Walk:
    """
    One sequence, its heads in front: which rows of the results are its own; query [H n D], key
    [H m D] and value [H m E] in the order of positions, which pairs see each other, what is added
    to the scores, and what dropout multiplies the weights by.
    """

    rows: Any
    query: ndarray
    key: ndarray
    value: ndarray
    seen: ndarray
    added: Any = 0.0
    kept: Any = 1.0


def walking_mistakes(
    operation: Operation,
) -> Iterator[tuple[str, Callable[[Operation, Inputs], Any]]]:
    """Words and function of each mistake, in tiles of one size or of a page."""
    if operation.name not in WALKED:
        return
    of_pages = ((0, "pages"),) if operation.name == "paged_attention" else ()
    for size, tiles in (*of_pages, *((size, f"tiles of {size} keys") for size in SIZES)):
        for words, rescaled in LOST.items():
            yield f"{words} when the maximum rises, in {tiles}", partial(walked, size, rescaled)
    if of_pages:
        yield "the last page of a sequence not cut to its length", with_whole_pages


def with_whole_pages(operation: Operation, inputs: Inputs) -> Any:
    """Return output and lse with every slot of a last page seen, the rows where they were."""
    placed = inputs["lengths"] - np.diff(inputs["query_starts"])
    given = inputs.get("offset")
    moved = {"lengths": whole_pages(inputs), "offset": placed if given is None else given}
    return operation.reference(**inputs | moved | {"page_table": there(inputs)})


def walked(size: int, rescaled: tuple[bool, bool], operation: Operation, inputs: Inputs) -> Any:
    """Return output and lse where a tile has so many keys, of a page where that is 0."""
    output, lse = operation.reference(**inputs)
    output, lse, sink = output.copy(), lse.copy(), inputs.get("sink")
    for walk in walks(operation, inputs):
        score = scores(walk, inputs)
        e, top, total = in_tiles(score, size or inputs["key_pages"].shape[1], rescaled)
        if sink is not None:
            e, top, total = beside_sink(sink[:, None, None], e, top, total)
        there = np.logical_and(walk.seen.any(axis=-1, keepdims=True), total > 0)
        used: ndarray = np.asarray(walk.seen.any(axis=-2))
        value = np.where(used[..., None], walk.value, 0)
        found = e / np.where(there, total, 1) * walk.kept @ value
        kept = np.broadcast_to(there, found.shape)
        own_lse = np.where(there, top + np.log(np.where(there, total, 1)), 0)[..., 0]
        store(output, walk.rows, found, kept, operation)
        store(lse, walk.rows, own_lse, kept[..., 0], operation)
    return output, lse


def in_tiles(
    score: ndarray, size: int, rescaled: tuple[bool, bool]
) -> tuple[ndarray, ndarray, ndarray]:
    """Exponentials, the last maximum, and the sum, of which some were brought to each maximum."""
    of_sum, of_output = rescaled
    exponentials, factors = running(score, size)
    total, weights = np.zeros((*score.shape[:-1], 1)), list[ndarray]()
    for e, factor in zip(exponentials, factors, strict=True):
        total = total * (factor if of_sum else 1.0) + e.sum(axis=-1, keepdims=True)
        weights = [w * (factor if of_output else 1.0) for w in weights] + [e]
    top = score.max(axis=-1, keepdims=True)
    return np.concatenate(weights, axis=-1), np.where(np.isneginf(top), 0, top), total


def beside_sink(
    sink: ndarray, e: ndarray, top: ndarray, total: ndarray
) -> tuple[ndarray, ndarray, ndarray]:
    """The same with a logit that has no value, which is added when all keys have been seen."""
    new = np.maximum(top, sink)
    fade = np.exp(top - new)
    return e * fade, new, total * fade + np.exp(sink - new)


def scores(walk: Walk, inputs: Inputs) -> ndarray:
    scale, cap = inputs.get("scale"), inputs.get("soft_cap")
    score = walk.query @ walk.key.swapaxes(-1, -2)
    score = score * (1 / sqrt(walk.query.shape[-1]) if scale is None else scale)
    score = score if cap is None else cap * np.tanh(score / cap)
    return np.where(walk.seen, score + walk.added, -np.inf)


def store(x: ndarray, rows: Any, own: ndarray, kept: ndarray, operation: Operation) -> None:
    """Put rows of one sequence where they belong, heads behind tokens but in grouped attention."""
    if operation.is_packed:
        own, kept = own.swapaxes(0, 1), kept.swapaxes(0, 1)
    x[rows] = np.where(kept, own, x[rows])


def walks(operation: Operation, inputs: Inputs) -> Iterator[Walk]:
    """Each sequence of a call, each entry of the batch in grouped attention."""
    query = inputs["query"]
    if operation.name == "grouped_attention":
        seen, mask = visible_pairs(operation, inputs), inputs.get("mask")
        mask = np.True_ if mask is None else mask
        shape = (*query.shape[:3], inputs["key"].shape[2])
        seen = np.broadcast_to(True if seen is None else seen, shape)
        keep, p = inputs.get("keep"), inputs.get("p", 0.0)
        kept = np.broadcast_to(1.0 if keep is None else np.where(keep, 1 / (1 - p), 0), shape)
        added = np.broadcast_to(0.0 if mask.dtype == bool else np.where(seen, mask, 0), shape)
        for b in range(len(query)):
            key, value = (
                for_all_heads(inputs[name][b], query.shape[1]) for name in ("key", "value")
            )
            yield Walk(b, query[b], key, value, seen[b], added[b], kept[b])
    else:
        for t, seen, key, value in tokens(operation, inputs):
            own = query[t].swapaxes(0, 1)
            k, v = (for_all_heads(x.swapaxes(0, 1), len(own)) for x in (key, value))
            yield Walk(t, own, k, v, np.broadcast_to(seen, (len(own), *seen.shape)))


def tokens(
    operation: Operation, inputs: Inputs
) -> Iterator[tuple[slice, ndarray, ndarray, ndarray]]:
    """Rows of each sequence, which of its keys they see, and these [m G D], values too."""
    if operation.name == "paged_attention":
        W = inputs["key_pages"].shape[1]
        for b, t, seen in seen_of_pages(inputs):
            at = (inputs["page_table"][b][:, None] * W + np.arange(W)).ravel()[: seen.shape[1]]
            at = np.where(seen.any(0), at, 0)
            pools = (inputs[name] for name in ("key_pages", "value_pages"))
            key, value = (pool.reshape(-1, *pool.shape[2:])[at] for pool in pools)
            yield t, seen, key, value
    else:
        pairs = packed_pairs(inputs)
        for _, t, u in sequences(inputs["query_starts"], inputs["key_starts"]):
            if t.start < t.stop and u.start < u.stop:
                yield t, pairs[t, u], inputs["key"][u], inputs["value"][u]


def for_all_heads(x: ndarray, heads: int) -> ndarray:
    """[G m D] repeated for the query heads that share it."""
    return np.repeat(x, heads // len(x), axis=0)
