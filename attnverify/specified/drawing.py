"""Inputs of a specification: sizes for its letters, numbers of several families, indices, masks."""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.inputs.recipe import Recipe
from attnverify.specified.reading import Argument

Choose = Callable[[Sequence[Any]], Any]

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 33)
MOST = 4000
"""Most elements of all letters together: intermediates may have an axis of each."""

LAYOUTS = ("contiguous", "contiguous", "transposed", "packed", "offset", "reversed")


def _needles(x: ndarray, rng: np.random.Generator) -> ndarray:
    """Let one place of the last axis stand out in each row."""
    place = rng.integers(0, x.shape[-1], (*x.shape[:-1], 1)) if x.ndim else 0
    shown = np.arange(x.shape[-1]) == place if x.ndim else True
    return np.where(shown, 8 * x, x / 2)


FAMILIES: dict[str, Callable[[ndarray, np.random.Generator], ndarray]] = {
    "normal": lambda x, rng: x,
    "spread": lambda x, rng: 4 * x,
    "lattice": lambda x, rng: np.round(8 * x) / 8,
    "ties": lambda x, rng: np.round(x),
    "uniform": lambda x, rng: rng.random(x.shape),
    "small": lambda x, rng: 1e-3 * x,
    "one_signed": lambda x, rng: np.abs(x),
    "offset_values": lambda x, rng: x + 100,
    "needles": _needles,
    "large": lambda x, rng: 40 * x,
}


def draw_sizes(choose: Choose, letters: Sequence[str]) -> dict[str, int]:
    """Draw a size for each letter, the largest made smaller until a case is small."""
    return limited({letter: choose(LENGTHS) for letter in letters})


def limited(sizes: dict[str, int]) -> dict[str, int]:
    while prod(sizes.values()) > MOST:
        largest = max(sizes, key=lambda letter: sizes[letter])
        sizes[largest] = sizes[largest] // 2
    return sizes


def fixed_sizes(letters: Sequence[str]) -> Iterator[dict[str, int]]:
    """
    Yield sizes that everybody meets: no two alike, all 1, all alike, where an axis is taken for
    another unseen, each letter alone beyond a block, and beyond two of them, where what one block
    hands to the next is handed on, each letter alone 1.
    """
    usual = dict(zip(letters, (3, 5, 2, 7, 4, 6, 9, 11, 8, 10, 12, 13), strict=False))
    yield limited(dict(usual))
    yield dict.fromkeys(letters, 1)
    yield dict.fromkeys(letters, min(6, int(MOST ** (1 / max(len(letters), 1)))))
    for letter in letters:
        yield limited(dict.fromkeys(letters, 2) | {letter: 65})
        yield limited(dict.fromkeys(letters, 3) | {letter: 129})
        yield dict.fromkeys(letters, 2) | {letter: 260}
        yield limited(usual | {letter: 1})


def expand_arguments(
    arguments: Sequence[Argument], recipe: Recipe, rng: np.random.Generator
) -> dict[str, Any]:
    """Make the arguments of a recipe, before they are rounded."""
    family = FAMILIES[recipe.values["family"]]
    made: dict[str, Any] = {}
    for argument in arguments:
        if argument.kind == "number":
            made[argument.name] = recipe.options.get(argument.name, argument.choices[0])
        else:
            made[argument.name] = _array(argument, recipe, family, rng)
    return made


def _array(argument: Argument, recipe: Recipe, family: Any, rng: np.random.Generator) -> ndarray:
    shape = argument.shape(recipe.sizes)
    if argument.kind == "bool":
        return rng.random(shape) < rng.choice([0.25, 0.75, 1.0])
    if argument.kind == "offsets":
        last = recipe.sizes[argument.below]
        return np.array(
            [0, *np.sort(rng.integers(0, last + 1, shape[0] - 2)), last], argument.dtype
        )
    if argument.kind == "int":
        return _integers(argument, recipe, shape, rng)
    if argument.choices:
        low, high = argument.choices
        return low + (high - low) * rng.random(shape)
    return np.asarray(family(np.asarray(rng.standard_normal(shape)), rng))


def _integers(
    argument: Argument, recipe: Recipe, shape: tuple[int, ...], rng: np.random.Generator
) -> ndarray:
    low, high = argument.least, argument.most
    if argument.below:
        high = recipe.sizes[argument.below] - 1
    found = rng.integers(low, high + 1, shape)
    for extra in argument.extra:
        found = np.where(rng.random(shape) < 0.2, extra, found)
    return found.astype(argument.dtype)
