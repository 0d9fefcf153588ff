"""
Slips: what goes wrong in every operation alike, as other arguments of the reference or another
arrangement of its output.

Batches or heads that all read the first one's, keys that are lost behind a block, a mask that is
transposed, axes that are exchanged on the way out. They are candidates of a diagnosis beside the
conventions and the known faults.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.inputs.recipe import Inputs

Slip = tuple[str, Callable[[Operation, Inputs], Any]]


def common_mistakes(operation: Operation) -> Iterator[Slip]:
    """Words and function of each slip that the operation can show."""
    for letter, name in (("B", "batch element"), ("H", "head")):
        for argument, axes in operation.axes.items():
            if letter in axes.split() and argument != "d_output":
                axis = axes.split().index(letter)
                yield (
                    f"the first {name}'s {argument} for all",
                    with_changed_argument(argument, partial(first_of, axis=axis)),
                )
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
    if {"key", "value"} <= set(operation.arguments):
        yield from lost_key_mistakes(operation)
    if "D" in " ".join(operation.axes.values()):
        for width in (16, 32, 64):
            yield (
                f"the product over the first {width} columns alone",
                with_changed_argument("query", partial(first_columns, width=width)),
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


def lost_key_mistakes(operation: Operation) -> Iterator[Slip]:
    """Keys that nobody sees, in operations that can hide them."""
    name = next((name for name in ("mask", "visible") if name in operation.arguments), None)
    if name is None or operation.chapter == "layers":
        return
    yield "the last key left out", with_hidden_keys(name, lambda j, M: j < M - 1)
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


def with_changed_argument(
    argument: str, change: Callable[[ndarray], ndarray]
) -> Callable[[Operation, Inputs], Any]:
    """The reference with one argument changed."""

    def answer(operation: Operation, inputs: Inputs) -> Any:
        x = inputs.get(argument)
        return operation.reference(**inputs if x is None else inputs | {argument: change(x)})

    return answer


def with_changed_output(change: Callable[[ndarray], ndarray]) -> Callable[[Operation, Inputs], Any]:
    """The reference with its first output rearranged."""

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


def first_columns(x: ndarray, width: int) -> ndarray:
    return x * (np.arange(x.shape[-1]) < width)


def first_of(x: ndarray, axis: int) -> ndarray:
    return np.broadcast_to(x.take([0], axis=axis), x.shape).copy()


def transposed(x: ndarray) -> ndarray:
    return x.mT.copy() if x.shape[-1] == x.shape[-2] else x


def exchanged(x: ndarray, one: int, other: int) -> ndarray:
    return x.swapaxes(one, other).copy() if x.ndim > other else x


def reshaped_instead_of_transposed(x: ndarray, one: int, other: int) -> ndarray:
    """Axes exchanged by a reshape, as ``view`` for ``transpose`` does it."""
    return x.swapaxes(one, other).reshape(x.shape) if x.ndim > other else x
