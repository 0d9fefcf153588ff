"""
Arguments that are read at other places of an axis than the one that is computed: another batch
element's or head's, the first one's for all, one key of each tile for all of it. One argument, the
keys with their values, or all of them. And two neighbours of the output, each in the other's place.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
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
    "the {what} of the {name} before, the first its own": lambda i: np.maximum(i - 1, 0),
    "the {what} of the next {name}, the last its own": lambda i: np.minimum(i + 1, i[-1]),
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
    "{what} of the next key, the first behind the last": lambda size, i: np.roll(i, -1),
    "{what} of the key before, the last before the first": lambda size, i: np.roll(i, 1),
    "{what} of the keys in reverse order": lambda size, i: i[::-1],
}
SINKS: dict[str, Callable[[ndarray, int], ndarray]] = {
    "the sinks of the first group of heads for every group": lambda h, share: h % share,
    "the sink of a head's group, not its own: head h reads number h // (H / G)": (
        lambda h, share: h // share
    ),
}
"""Which sink is read for each head, of which so many share a head of keys."""
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
            known = set(arguments) <= {"query", "key", "value", "sink"}
            for words, places in ENTRIES.items() if known else [(FIRST, ENTRIES[FIRST])]:
                told = words.format(name=name, what=enumerated(arguments))
                yield told, partial(read_at, arguments, letter, places)
    if "sink" in axes and "G" in operation.sizes:
        for words, of_group in SINKS.items():
            yield words, partial(with_sinks_at, of_group)
    names = ("query", "key", "value")
    if set(names) <= set(axes) and not operation.is_gradient and operation.chapter != "layers":
        for one, other in permutations(names, 2):
            words = f"the {one} in place of the {other}, which is never read"
            yield words, partial(with_another, one, other)
    yield from normalised_arguments(operation)
    for arguments in (("key",), ("value",), ("key", "value")):
        if all("M" in axes.get(argument, ()) for argument in arguments):
            for words, of_tile in KEYS.items():
                for size in TILES if "{size}" in words else (1,):
                    told = words.format(what=enumerated(arguments), size=size)
                    yield told, partial(read_at, arguments, "M", partial(of_tile, size))


def takes(op: Operation, *names: str) -> bool:
    return set(names) <= set(op.arguments)


def with_another(one: str, other: str, operation: Operation, inputs: Inputs) -> Any:
    return operation.reference(**inputs | {other: inputs[one]})


def enumerated(arguments: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(arguments[:-1]), arguments[-1])))


def read_at(
    arguments: tuple[str, ...], letter: str, places: Places, operation: Operation, inputs: Inputs
) -> Any:
    """Return the reference with the arguments read at other places of an axis."""
    changed = {}
    for name in arguments:
        axis = operation.axes[name].split().index(letter)
        x = inputs.get(name)
        if x is None:
            return operation.reference(**inputs)
        changed[name] = x.take(places(np.arange(x.shape[axis])), axis=axis)
    return operation.reference(**inputs | changed)


def with_sinks_at(
    places: Callable[[ndarray, int], ndarray], operation: Operation, inputs: Inputs
) -> Any:
    """Return the reference with the sinks of other heads."""
    name = next(name for name, axes in operation.axes.items() if "G" in axes.split())
    groups = inputs[name].shape[operation.axes[name].split().index("G")]
    sink = inputs.get("sink")
    if sink is None:
        return operation.reference(**inputs)
    return operation.reference(
        **inputs | {"sink": sink[places(np.arange(len(sink)), len(sink) // groups)]}
    )


def unit_length(eps: float, x: ndarray) -> ndarray:
    length = np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps)
    return x / np.where(length == 0, 1, length)


def unit_mean_square(eps: float, x: ndarray) -> ndarray:
    width = x.shape[-1]
    return np.sqrt(width) * unit_length(eps * width, x)


def standardised(eps: float, x: ndarray) -> ndarray:
    return unit_mean_square(eps, x - x.mean(axis=-1, keepdims=True))


NORMS: tuple[tuple[str, Callable[[ndarray], ndarray]], ...] = (
    ("divided by its length", partial(unit_length, 0.0)),
    *(
        (words, partial(norm, eps))
        for words, norm in (
            ("divided by the root of its mean square (RMS norm)", unit_mean_square),
            ("standardised over its width (layer norm)", standardised),
        )
        for eps in (0.0, 1e-6, 1e-5)
    ),
)
"""What may be made of a row of an argument before it is used, with the usual epsilons."""


def normalised_arguments(operation: Operation) -> Iterator[Mistake]:
    """Words and function of each argument that may be normalised, query and key both too."""
    if {"query", "key"} <= set(operation.arguments) and operation.is_staged:
        known = ("query", "key", "value")
        single = [(argument,) for argument in known if argument in operation.arguments]
        for arguments in (*single, ("query", "key")):
            for words, norm in NORMS:
                told = f"each row of {enumerated(arguments)} {words} first"
                yield told, partial(with_rows, arguments, norm)


def with_rows(
    arguments: tuple[str, ...],
    change: Callable[[ndarray], ndarray],
    operation: Operation,
    inputs: Inputs,
) -> Any:
    return operation.reference(**inputs | {name: change(inputs[name]) for name in arguments})


def first_of(x: ndarray, axis: int) -> ndarray:
    return np.broadcast_to(x.take([0], axis=axis), x.shape).copy()
