"""
Arguments that are read at other places of an axis than the one that is computed: another batch
element's or head's, the first one's for all, one key of each tile for all of it. One argument, the
keys with their values, or all of them. And two neighbours of the output, each in the other's place.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.inputs.recipe import Inputs

Mistake = tuple[str, Callable[[Operation, Inputs], Any]]
Places = Callable[[ndarray], ndarray]
"""Which places of an axis are read, of those that should be."""

FIRST = "the first {name}'s {what} for all"
ENTRIES: dict[str, Places] = {
    FIRST: np.zeros_like,
    "the {what} of the next {name} (a wrong {name} index)": lambda i: np.roll(i, -1),
    "the {what} of the {name} before (a wrong {name} index)": lambda i: np.roll(i, 1),
    "the {what} of the {name}s in reverse order": lambda i: i[::-1],
    "the {what} of one {name} in two, as grouped heads share them": lambda i: i // 2,
    "the last {name}'s {what} for all": lambda i: np.full_like(i, i[-1]),
}
"""By the words for it, with a name for the axis and the arguments."""
KEYS: dict[str, Callable[[int, ndarray], ndarray]] = {
    "each key of a tile of {size} given the {what} of the last one of it": (
        lambda size, i: np.minimum(i // size * size + size - 1, i[-1])
    ),
    "each key of a tile of {size} given the {what} of the first one of it": (
        lambda size, i: i // size * size
    ),
    "{what} of the next key (off by one)": lambda size, i: np.minimum(i + 1, i[-1]),
    "{what} of the key before (off by one)": lambda size, i: np.maximum(i - 1, 0),
}
TILES = (32, 16, 64, 128)
JOINT = (("key", "value"), ("query", "key", "value"))


def misread_arguments(operation: Operation) -> Iterator[Mistake]:
    """Words and function of each that the operation can show."""
    axes = {name: x.split() for name, x in operation.axes.items() if name != "d_output"}
    for letter, name in (("B", "batch element"), ("H", "head")):
        single = [(argument,) for argument, own in axes.items() if letter in own]
        for arguments in (*single, *JOINT):
            if not all(letter in axes.get(argument, ()) for argument in arguments):
                continue
            known = set(arguments) <= {"query", "key", "value"}
            for words, places in ENTRIES.items() if known else [(FIRST, ENTRIES[FIRST])]:
                told = words.format(name=name, what=enumerated(arguments))
                yield told, partial(read_at, arguments, letter, places)
    for arguments in (("key",), ("value",), ("key", "value")):
        if all("M" in axes.get(argument, ()) for argument in arguments):
            for words, of_tile in KEYS.items():
                for size in TILES if "{size}" in words else (1,):
                    told = words.format(what=enumerated(arguments), size=size)
                    yield told, partial(read_at, arguments, "M", partial(of_tile, size))


def enumerated(arguments: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(arguments[:-1]), arguments[-1])))


def read_at(
    arguments: tuple[str, ...], letter: str, places: Places, operation: Operation, inputs: Inputs
) -> Any:
    """Return the reference with the arguments read at other places of an axis."""
    changed = {}
    for name in arguments:
        axis = operation.axes[name].split().index(letter)
        x = inputs[name]
        changed[name] = x.take(places(np.arange(x.shape[axis])), axis=axis)
    return operation.reference(**inputs | changed)


def first_of(x: ndarray, axis: int) -> ndarray:
    return np.broadcast_to(x.take([0], axis=axis), x.shape).copy()


NEIGHBOURS = {"columns": -1, "rows": -2, "heads": -3, "batch elements": -4}


def exchanged_pairs(operation: Operation) -> Iterator[Mistake]:
    """Words and function of each axis of which the first two places may be exchanged."""
    if not operation.is_gradient and operation.axes:
        for name, axis in NEIGHBOURS.items():
            yield (
                f"the first two {name} of the output exchanged",
                partial(with_neighbours_exchanged, axis=axis),
            )


def with_neighbours_exchanged(operation: Operation, inputs: Inputs, axis: int) -> Any:
    found = operation.reference(**inputs)
    first = found[0] if isinstance(found, tuple) else found
    if not isinstance(first, ndarray) or first.ndim < -axis or first.shape[axis] < 2:
        return found
    order = np.arange(first.shape[axis])
    order[:2] = 1, 0
    changed = first.take(order, axis=axis)
    return (changed, *found[1:]) if isinstance(found, tuple) else changed
