"""
What goes wrong in every operation alike, as other arguments of the reference or another arrangement
of its output.

Batches or heads that read another one's, keys that are lost behind a block, a mask that is
transposed, arguments that are left out, axes that are exchanged on the way out, rows that are never
written. They are candidates of a diagnosis beside the conventions and the known faults.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.conventions.convention import Convention, conventions
from attnverify.diagnosis.mistakes.memory import memory_mistakes, merge_mistakes
from attnverify.diagnosis.mistakes.misread import exchanged_pairs, first_of, misread_arguments
from attnverify.inputs.recipe import Inputs

Mistake = tuple[str, Callable[[Operation, Inputs], Any]]


KEYS = (16, 32, 64, 128, 256, 512, 1024)
"""Sizes of what a kernel may have made for a mask."""


def opened(x: ndarray, first: int) -> ndarray:
    """Return a mask that hides nothing from a key on."""
    return np.where(np.arange(x.shape[-1]) < first, x, x.dtype.type(x.dtype == bool))


def opened_if_boolean(x: ndarray, first: int) -> ndarray:
    return opened(x, first) if x.dtype == bool else x


OPENED = {"a {argument} ignored": opened, "a boolean {argument} ignored": opened_if_boolean}


def common_mistakes(operation: Operation) -> Iterator[Mistake]:
    """Words and function of each mistake that the operation can show."""
    yield from misread_arguments(operation)
    if operation.axes.get("query", "").split() == ["B", "H", "N", "D"]:
        yield "arrays read as [B N H D] where their shapes allow it", read_positions_first
    yield from left_out(operation)
    for argument in ("mask", "visible", "keep", "attn_mask"):
        if argument in operation.arguments:
            yield (
                f"a {argument} that is transposed where it can be",
                with_changed_argument(argument, transposed),
            )
            yield (
                f"the first row of {argument} for all",
                with_changed_argument(argument, partial(first_of, axis=-2)),
            )
            yield (
                f"the first leading element of {argument} for all",
                with_changed_argument(argument, lambda x: first_of(x, 0) if x.ndim > 2 else x),
            )
    for argument in {"mask", "visible"} & set(operation.arguments):
        for first in KEYS:
            for words, change in OPENED.items():
                told = f"{words.format(argument=argument)} from key {first} on"
                yield told, with_changed_argument(argument, partial(change, first=first))
    if "key_padding_mask" in operation.arguments:
        yield (
            "the padding of the first batch entry for all",
            with_changed_argument("key_padding_mask", partial(first_of, axis=0)),
        )
    if {"key", "value"} <= set(operation.arguments):
        yield from lost_key_mistakes(operation)
    if "window" in operation.arguments and "N" in operation.sizes:
        yield from decoding(operation)
    yield from memory_mistakes(operation)
    yield from merge_mistakes(operation)
    if operation.name == "rel_shift":
        yield "the last row dropped behind the padding where the first must be", with_tail_dropped
    if "D" in " ".join(operation.axes.values()):
        for width in (16, 32, 64):
            yield (
                f"the product over the first {width} columns alone",
                with_changed_argument("query", partial(first_columns, width=width)),
            )
    if not operation.is_gradient and operation.axes:
        yield from unwritten(operation)
    yield from exchanged_pairs(operation)
    if operation.is_gradient and operation.is_staged and "D" in operation.sizes:
        for number, argument in enumerate(("query", "key")):
            yield (
                f"a {argument} whose gradient is not scaled",
                partial(with_unscaled_gradient, number=number),
            )
    for one, other in ((0, 1), (1, 2), (2, 3)):
        yield (
            f"axes {one} and {other} of the output exchanged",
            with_changed_output(partial(exchanged, one=one, other=other)),
        )
        yield (
            f"axes {one} and {other} of the output reshaped into each other",
            with_changed_output(partial(reshaped_instead_of_transposed, one=one, other=other)),
        )


def decoding(operation: Operation) -> Iterator[Mistake]:
    """What another convention makes of a call of one query alone, as kernels of their own do it."""
    for each in conventions(operation.name):
        yield f"{each.words}, where there is one query alone", partial(of_one_query, each)


def of_one_query(convention: Convention, operation: Operation, inputs: Inputs) -> Any:
    rows = inputs["query"].shape[-2] if "query" in inputs else inputs["N"]
    return convention(operation, inputs, "float64") if rows == 1 else operation.reference(**inputs)


def with_tail_dropped(operation: Operation, inputs: Inputs) -> Any:
    """A column of zeros in front, read as rows one shorter, the tail left out."""
    x = inputs["x"]
    padded = np.concatenate([np.zeros_like(x[..., :1]), x], axis=-1)
    line = padded.reshape(*x.shape[:-2], -1)
    return line[..., : x.shape[-2] * x.shape[-1]].reshape(x.shape)


def with_unscaled_gradient(operation: Operation, inputs: Inputs, number: int) -> Any:
    """Return the gradients with one of them as it is before its factor 1/sqrt(D)."""
    width = inputs["query"].shape[-1]
    found = operation.reference(**inputs)
    return tuple(x * width**0.5 if i == number else x for i, x in enumerate(found))


def read_positions_first(operation: Operation, inputs: Inputs) -> Any:
    """Every array of four axes with the second and third exchanged, the output back again."""
    query, key = inputs["query"], inputs["key"]
    if query.shape[1] != query.shape[2] or key.shape[2] != query.shape[2]:
        return operation.reference(**inputs)
    names = ("query", "key", "value", "d_output")
    moved = {name: inputs[name].swapaxes(1, 2) for name in names if name in inputs}
    found = operation.reference(**inputs | moved)
    parts = found if isinstance(found, tuple) else (found,)
    back = tuple(x.swapaxes(1, 2) if x.ndim == 4 and i < 3 else x for i, x in enumerate(parts))
    return back if isinstance(found, tuple) else back[0]


def left_out(operation: Operation) -> Iterator[Mistake]:
    """What is added, and was not."""
    for argument in ("u", "v", "query_pos_bias", "key_pos_bias", "key_pos_embeddings", "position"):
        if argument in operation.arguments:
            yield f"{argument} left out", with_changed_argument(argument, np.zeros_like)
    if "position" in operation.arguments:
        yield (
            "the position table in reverse order",
            with_changed_argument("position", lambda x: x[..., ::-1, :]),
        )
        for words, by in (("on", -1), ("back", 1)):
            yield (
                f"the position table read one row {words}",
                with_changed_argument("position", partial(np.roll, shift=by, axis=-2)),
            )
    if "w_score" in operation.arguments and not operation.is_gradient:
        yield "the tanh after the sum over the hidden units", with_tanh_last


def with_tanh_last(operation: Operation, inputs: Inputs) -> Any:
    """One hidden unit per pair, which is its score: its tanh is the reference's."""
    x = inputs
    by_query = (x["query"] @ x["w_query"].T) @ x["w_score"]
    by_key = (x["key"] @ x["w_key"].T) @ x["w_score"]
    one = np.ones((1, 1))
    given = {"query": by_query[..., None], "key": by_key[..., None], "w_query": one, "w_key": one}
    return operation.reference(**inputs | given | {"w_score": np.ones(1)})


def unwritten(operation: Operation) -> Iterator[Mistake]:
    """Rows and columns of the output that stay zero."""
    yield "the rows of the output in reverse order", with_changed_output(reversed_rows)
    for size in (16, 32, 64, 128):
        yield (
            f"zeros behind the last full tile of {size} queries",
            with_changed_output(partial(first_rows, size=size)),
        )
    if {"sink", "query"} <= set(operation.arguments) and "N" in operation.sizes:
        for half in (16, 32, 64, 128, 8, 4):
            for name, place, axis in (("lse", 1, -1), ("output", 0, -2)):
                yield (
                    HALVES.format(name=name, size=2 * half),
                    partial(with_halves_stored, half=half, place=place, axis=axis),
                )
    if "E" in operation.sizes and "D" in operation.sizes:
        yield "an output of zeros beyond the query's width", zeros_beyond_query_width


HALVES = (
    "the {name} of the second half of each tile of {size} rows stored at those of the first half, "
    "its own rows not written (0)"
)


def with_halves_stored(
    operation: Operation, inputs: Inputs, half: int, place: int, axis: int
) -> Any:
    """Return output and lse, one of them where the first half of each tile is overwritten."""
    found = list(operation.reference(**inputs))
    x = np.moveaxis(found[place], axis, 0)
    i = np.arange(len(x))
    is_first, later = i % (2 * half) < half, np.minimum(i + half, len(x) - 1)
    source = np.where(i + half < len(x), later, i)
    stored = np.where(is_first.reshape(-1, *(1,) * (x.ndim - 1)), x[source], 0)
    found[place] = np.moveaxis(stored, 0, axis)
    return tuple(found)


def reversed_rows(x: ndarray) -> ndarray:
    return x[..., ::-1, :].copy() if x.ndim > 1 else x


def first_rows(x: ndarray, size: int) -> ndarray:
    N = x.shape[-2] if x.ndim > 1 else 0
    return x * (np.arange(N) < N // size * size)[:, None] if size < N else x


def zeros_beyond_query_width(operation: Operation, inputs: Inputs) -> Any:
    found = operation.reference(**inputs)
    if not isinstance(found, ndarray):
        return found
    return found * (np.arange(found.shape[-1]) < inputs["query"].shape[-1])


def lost_key_mistakes(operation: Operation) -> Iterator[Mistake]:
    """Keys that nobody sees, in operations that can hide them."""
    name = next((name for name in ("mask", "visible") if name in operation.arguments), None)
    if name is None or operation.chapter == "layers":
        return
    yield "the last key left out", with_hidden_keys(name, lambda j, M: j < M - 1)
    yield (
        "the last key left out, unless it is the only one",
        with_hidden_keys(name, lambda j, M: (j < M - 1) | (M == 1)),
    )
    yield "the first key left out", with_hidden_keys(name, lambda j, M: j > 0)
    for block in (4, 8, 16, 32, 64):
        yield (
            f"the keys behind the last full block of {block} left out",
            with_hidden_keys(name, partial(in_full_blocks, block=block)),
        )
        yield (
            f"the keys behind the first {block} left out",
            with_hidden_keys(name, partial(in_the_first, block=block)),
        )
    for block in (8, 16, 32, 64, 128):
        for place, which in ((block - 1, "last"), (0, "first")):
            yield (
                f"the {which} key of each tile of {block} left out",
                with_hidden_keys(name, partial(but_in_tiles, place=place, block=block)),
            )


def with_changed_argument(
    argument: str, change: Callable[[ndarray], ndarray]
) -> Callable[[Operation, Inputs], Any]:
    """Return the reference with one argument changed."""

    def answer(operation: Operation, inputs: Inputs) -> Any:
        x = inputs.get(argument)
        return operation.reference(**inputs if x is None else inputs | {argument: change(x)})

    return answer


def with_changed_output(change: Callable[[ndarray], ndarray]) -> Callable[[Operation, Inputs], Any]:
    """Return the reference with its first output rearranged."""

    def answer(operation: Operation, inputs: Inputs) -> Any:
        found = operation.reference(**inputs)
        return (
            (change(found[0]), *found[1:])
            if isinstance(found, tuple)
            else change(found)
            if isinstance(found, ndarray)
            else found
        )

    return answer


def with_hidden_keys(
    name: str, seen: Callable[[ndarray, int], ndarray]
) -> Callable[[Operation, Inputs], Any]:
    def answer(operation: Operation, inputs: Inputs) -> Any:
        M, mask = inputs["key"].shape[-2], inputs.get(name)
        keys = seen(np.arange(M), M)[None]
        new = (
            keys
            if mask is None
            else mask & keys
            if mask.dtype == bool
            else np.where(keys, mask, -np.inf)
        )
        return operation.reference(**inputs | {name: new})

    return answer


def in_full_blocks(j: ndarray, M: int, block: int) -> ndarray:
    return j < M // block * block


def in_the_first(j: ndarray, M: int, block: int) -> ndarray:
    return j < block


def but_in_tiles(j: ndarray, M: int, place: int, block: int) -> ndarray:
    return j % block != place


def first_columns(x: ndarray, width: int) -> ndarray:
    return x * (np.arange(x.shape[-1]) < width)


def transposed(x: ndarray) -> ndarray:
    return x.mT.copy() if x.shape[-1] == x.shape[-2] else x


def exchanged(x: ndarray, one: int, other: int) -> ndarray:
    return x.swapaxes(one, other).copy() if x.ndim > other else x


def reshaped_instead_of_transposed(x: ndarray, one: int, other: int) -> ndarray:
    """Axes exchanged by a reshape, as ``view`` for ``transpose`` does it."""
    return x.swapaxes(one, other).reshape(x.shape) if x.ndim > other else x
