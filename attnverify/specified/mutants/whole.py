"""
Mutants of all that goes in and comes out: two axes walked as one, whole tiles of the output alone,
an argument counted once for each of another axis, numbers sorted apart from their places.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.outside import Inputs, Mutant
from attnverify.catalogue.pytrees import map_leaves
from attnverify.specified.mutants.slips import TILES
from attnverify.specified.mutants.stand_ins import in_tiles
from attnverify.specified.reading import Argument, read_axes

if TYPE_CHECKING:
    from attnverify.specified.operation import SpecifiedOperation

SORTING = {"argsort", "argpartition", "topk"}


def misread_whole(operation: "SpecifiedOperation") -> Iterator[Mutant]:
    """List the mutants of an operation's arguments and outputs together."""
    if operation.is_gradient:
        return
    arrays = [one for one in operation.described if one.axes]
    adjacent = [pairwise(one.axes) for one in arrays]
    pairs = dict.fromkeys(pair for each in adjacent for pair in each)
    for (once, letter), (alike, along) in pairs:
        if (
            once == alike == 1
            and letter
            and along
            and all(
                ((1, letter), (1, along)) in pairwise(x.axes) for x in arrays if letter in x.letters
            )
        ):
            words = f"{letter} and {along} walked as one axis: what runs along {along} goes on "
            words += f"from one of {letter} to the next"
            yield words, partial(_as_one_axis, operation, letter, along), 1
    for one in arrays:
        for letter in sorted(operation.sizes - one.letters) if len(one.axes) == 1 else ():
            words = f"`{one.name}` counted once for each of {letter}"
            if one.kind == "float":
                yield words, partial(_counted, operation, one.name, letter), 2
    yield from _tails(operation, arrays)
    if SORTING.intersection(operation.own.__code__.co_names):
        words = "numbers that are not 0 in descending order, apart from their places"
        yield words, lambda inputs: map_leaves(in_order, operation.evaluate(inputs)), 2


def size_of(operation: "SpecifiedOperation", letter: str, inputs: Inputs) -> int:
    """Find a size in the shapes of the arguments."""
    return next(
        int(n // factor)
        for one in operation.described
        for n, (factor, own) in zip(np.shape(inputs[one.name]), one.axes, strict=False)
        if own == letter
    )


def _counted(operation: "SpecifiedOperation", name: str, letter: str, inputs: Inputs) -> Any:
    return operation.evaluate(inputs | {name: inputs[name] * size_of(operation, letter, inputs)})


def _as_one_axis(operation: "SpecifiedOperation", one: str, other: str, inputs: Inputs) -> Any:
    """
    Answer two axes as one; what has only the second, as a table of places, gives its last beyond
    its end.
    """
    outer, inner = (size_of(operation, letter, inputs) for letter in (one, other))
    given, place = dict(inputs), 0
    for argument in operation.described:
        letters, x = [letter for _, letter in argument.axes], inputs[argument.name]
        if one in letters:
            place = letters.index(one)
            given[argument.name] = x.reshape(
                *x.shape[:place], 1, outer * inner, *x.shape[place + 2 :]
            )
        elif other in letters:
            last = np.minimum(np.arange(outer * inner), inner - 1)
            given[argument.name] = x.take(last, letters.index(other))

    return map_leaves(
        lambda y: y.reshape(*y.shape[:place], outer, inner, *y.shape[place + 2 :]),
        operation.evaluate(given),
    )


def _tails(operation: "SpecifiedOperation", arrays: list[Argument]) -> Iterator[Mutant]:
    """List outputs of which whole tiles are computed: the rest is 0, or what an argument has."""
    axes = read_axes(operation.own)
    same = [one.name for one in arrays if one.kind == "float" and one.axes == axes]
    for axis, (factor, letter) in enumerate(axes):
        for tile in TILES if letter else ():
            for name in ("", *same):
                what = f"`{name}` itself" if name else "0"
                words = f"{what} beyond the whole tiles of {tile} of {letter}"
                for shorter in (False, True):
                    cut = partial(_cut, axis=axis, factor=factor, tile=tile, shorter=shorter)
                    yield words, partial(_answer, operation, cut, name), 1


def _answer(
    operation: "SpecifiedOperation", cut: Callable[..., ndarray], name: str, inputs: Inputs
) -> Any:
    rest = inputs.get(name, 0.0)
    return map_leaves(lambda y: cut(y, rest), operation.evaluate(inputs))


def _cut(y: ndarray, rest: Any, axis: int, factor: int, tile: int, shorter: bool) -> ndarray:
    seen = np.tile(in_tiles(y.shape[axis] // factor, tile, shorter), factor)
    return np.where(seen.reshape(-1, *(1,) * (y.ndim - 1 - axis)), y, rest)


def in_order(y: ndarray) -> ndarray:
    """Sort what is not 0 in each row, the largest first, and leave the places."""
    shown = y != 0
    falling = -np.sort(-np.where(shown, y, -np.inf), axis=-1)
    ranks = np.maximum(np.cumsum(shown, axis=-1) - 1, 0)
    return np.where(shown, np.take_along_axis(falling, ranks, axis=-1), 0.0)
