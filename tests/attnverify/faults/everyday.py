"""
Everyday faults: right at small sizes, wrong from a size on that is drawn for each, at most that of
the ordinary test. Each is a function of the arguments and of the right answer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.inputs.real.calls import everyday_sizes
from attnverify.inputs.recipe import Recipe

Inputs = dict[str, Any]
Fault = Callable[[Operation, Inputs, Any], Any]
TILE = 64

SMALL = {"N": 129, "M": 129, "D": 17, "E": 17, "H": 7, "F": 64, "A": 18}
"""A fault begins above these: no smaller call of the profile has a length and another size so."""


def changed(answer: Any, change: Callable[[ndarray], ndarray], least: int = 2) -> Any:
    """The answer, every array of so many axes changed in a copy."""
    return map_leaves(
        lambda x: change(x.copy()) if isinstance(x, ndarray) and x.ndim >= least else x, answer
    )


def last_tile_of_rows(op: Operation, given: Inputs, answer: Any) -> Any:
    def drop(x: ndarray) -> ndarray:
        x[..., (x.shape[-2] - 1) // TILE * TILE :, :] = 0
        return x

    return changed(answer, drop)


def band_of_rows(op: Operation, given: Inputs, answer: Any) -> Any:
    """The second warp group of each block writes the rows of its neighbour."""

    def shift(x: ndarray) -> ndarray:
        band = np.arange(x.shape[-2]) % 128 // 32 == 1
        x[..., band, :] = np.roll(x, 1, -2)[..., band, :]
        return x

    return changed(answer, shift)


def block_of_columns(op: Operation, given: Inputs, answer: Any) -> Any:
    def drop(x: ndarray) -> ndarray:
        x[..., x.shape[-1] - x.shape[-1] // 4 :] = 0
        return x

    return changed(answer, drop)


def entry_repeated(op: Operation, given: Inputs, answer: Any) -> Any:
    def repeat(x: ndarray) -> ndarray:
        x[-1] = x[0]
        return x

    return changed(answer, repeat, 3)


def head_repeated(op: Operation, given: Inputs, answer: Any) -> Any:
    def repeat(x: ndarray) -> ndarray:
        flat = x.reshape(-1, *x.shape[-2:])
        flat[-3:] = flat[0]
        return flat.reshape(x.shape)

    return changed(answer, repeat, 4)


def zeros(op: Operation, given: Inputs, answer: Any) -> Any:
    return changed(answer, np.zeros_like, 1)


def last_keys_lost(op: Operation, given: Inputs, answer: Any) -> Any:
    """The last tile of keys is not looked at, forward and backward."""
    M = given["key"].shape[-2]
    seen = np.arange(M) < (M - 1) // TILE * TILE
    hidden = np.where(seen, 0.0, -np.inf)
    mask = given.get(op.mask)
    if mask is None:
        return op.reference(**given | {op.mask: np.broadcast_to(seen, (1, M))})
    return op.reference(**given | {op.mask: mask & seen if mask.dtype == bool else mask + hidden})


def masks_last_tile_ignored(op: Operation, given: Inputs, answer: Any) -> Any:
    mask = given[op.mask].copy()
    place = (mask.shape[-1] - 1) // TILE * TILE
    is_hidden = op.mask == "attn_mask"
    mask[..., place:] = (not is_hidden) if mask.dtype == bool else 0.0
    return op.reference(**given | {op.mask: mask})


def draws_last_tile_ignored(op: Operation, given: Inputs, answer: Any) -> Any:
    keep = given["keep"].copy()
    keep[..., (keep.shape[-1] - 1) // TILE * TILE :] = True
    return op.reference(**given | {"keep": keep})


def half_sums(op: Operation, given: Inputs, answer: Any) -> Any:
    """What is handed on is kept in half precision."""
    return changed(answer, lambda x: x.astype(np.float16).astype(float))


def one_gradient(place: int, fault: Fault) -> Fault:
    """The fault in one gradient alone."""

    def wrong(op: Operation, given: Inputs, answer: Any) -> Any:
        found = list(fault(op, given, answer))
        return tuple(found[i] if i == place else x for i, x in enumerate(answer))

    return wrong


@dataclass(frozen=True)
class Everyday:
    """A fault of an operation, by its name, from these sizes on, in calls with these parts."""

    operation: str
    name: str
    wrong: Fault
    least: tuple[tuple[str, int], ...]
    part: str = ""

    def is_on(self, recipe: Recipe) -> bool:
        sizes = recipe.sizes
        large = all(sizes.get(letter, 0) >= size for letter, size in self.least)
        return large and (not self.part or getattr(recipe, self.part) is not None)

    def answer(self, recipe: Recipe, inputs: Inputs, right: Any) -> Any:
        op = CATALOGUE[self.operation]
        return self.wrong(op, inputs, right) if self.is_on(recipe) else right


OUTPUTS: dict[str, Fault] = {
    "the last tile of rows never written": last_tile_of_rows,
    "a band of rows of each block off by one": band_of_rows,
    "a block of columns never written": block_of_columns,
    "the first entry of the batch for the last": entry_repeated,
    "zeros": zeros,
}


def faults_of(operation: str, rng: Random) -> Iterator[Everyday]:
    """Every fault that an operation can have, with thresholds drawn."""
    op = CATALOGUE[operation]
    found: dict[str, tuple[Fault, str]] = {name: (fault, "") for name, fault in OUTPUTS.items()}
    if op.is_attention and "H" in op.sizes:
        found["one head's output for the last three"] = (head_repeated, "")
    if op.is_attention:
        found["the last tile of keys lost"] = (last_keys_lost, "")
        if not op.is_gradient:
            found["sums kept in half precision"] = (half_sums, "")
        if op.mask:
            found["the last tile of the mask ignored"] = (masks_last_tile_ignored, "mask")
        if "keep" in op.arguments:
            found["the last tile of the draw ignored"] = (draws_last_tile_ignored, "dropout")
    if op.is_attention and op.is_gradient:
        for place, name in enumerate(("query", "key", "value")):
            wrong = one_gradient(place, last_tile_of_rows)
            found[f"the last tile of the gradient by {name} never written"] = (wrong, "")
    for name, (fault, part) in found.items():
        yield Everyday(operation, name, fault, drawn_sizes(op, rng), part)


def drawn_sizes(op: Operation, rng: Random) -> tuple[tuple[str, int], ...]:
    """A length and one or two further sizes from which a fault begins, at most everyday ones."""
    sizes = everyday_sizes(op) or {}
    above = {a: min(size, sizes[a] // 2) for a, size in SMALL.items() if a in op.sizes & set(sizes)}
    letters = list(above)
    length = rng.choice([a for a in letters if a in "NM"])
    others = [a for a in letters if a != length]
    chosen = [length, *rng.sample(others, rng.randint(1, min(2, len(others))))]
    return tuple((a, rng.randint(above[a] + 1, sizes[a])) for a in chosen)


def paths_of(operation: str) -> Iterator[tuple[str, Callable[[Recipe], bool]]]:
    """
    What a kernel has a path of its own for, in words, and whether a call takes it: each width, bare
    and masked, another width of the values, more blocks than processors, a cache, strides.
    """
    op, tiles = CATALOGUE[operation], 129

    def is_tiled(recipe: Recipe) -> bool:
        return min(recipe.sizes[letter] for letter in op.sizes & set("NM")) >= tiles

    for width in (64, 80, 96, 128) if {"D", "E"} <= op.sizes else ():
        masks = (None, "mask") if op.mask else (None,)
        for masked in masks:
            yield (
                f"heads of {width}, {masked or 'no mask'}",
                lambda r, w=width, m=masked: (
                    is_tiled(r) and r.sizes["D"] == w == r.sizes["E"] and bool(r.mask) == bool(m)
                ),
            )
        yield f"E != D = {width}", lambda r, w=width: r.sizes["D"] == w != r.sizes["E"]
    for axes in op.traits.mask_axes if {"D", "E"} <= op.sizes else ():
        words = f"a mask of {axes}"
        yield words, lambda r, a=axes: is_tiled(r) and bool(r.mask) and r.mask["axes"] == a
    for F in (256, 384, 768, 1024) if op.has_heads else ():
        yield f"F = {F}", lambda r, F=F: is_tiled(r) and r.sizes["F"] == F
    if {"B", "N"} <= op.sizes:
        yield "more than 148 blocks", lambda r: r.sizes["B"] * r.sizes.get("H", 1) > 148
        yield "strides", lambda r: is_tiled(r) and r.layout["kind"] != "contiguous"
    if "value" in op.arguments and not (op.traits.parameters or op.is_gradient):
        for M in (1024, 3000, 8000) if "D" in op.sizes else (8000,):
            yield f"one query, {M} keys", lambda r, M=M: r.sizes["N"] == 1 and r.sizes["M"] >= M
        if not op.traits.causal:
            yield "more queries than keys", lambda r: is_tiled(r) and r.sizes["N"] > r.sizes["M"]


def is_seen_by_allclose(wrong: Any, right: Any) -> bool:
    """The ordinary test, ``allclose(1e-3, 1e-3)``: here it is what is measured, and judges none."""
    pairs = zip(leaves(wrong), leaves(right), strict=True)
    return any(
        not np.allclose(x, y, 1e-3, 1e-3, equal_nan=True)
        for x, y in pairs
        if isinstance(y, ndarray)
    )
