"""
Evidence: what a report shows of one failure beside its words, as data that can be written down,
sent between processes and drawn later.

A picture is the slice of the output in which the worst element lies, over its last two axes: what
came, what was expected, the error as a share of the bound. Of a large slice it is a window around
the worst element.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy import ndarray

from attnverify.catalogue.annotations import float_axes
from attnverify.catalogue.operation import CATALOGUE
from attnverify.failures.plain_data import write_numbers
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import Case
from attnverify.judge.comparison import Comparison
from attnverify.judge.errors import Disagreement

WINDOW = 24
"""As many rows and columns are shown at most; what has been shrunk is nearly always smaller."""


Number = float | str
"""A number that JSON does not know is the word "nan", "inf" or "-inf"."""


@dataclass(frozen=True)
class Picture:
    """
    A window of a comparison.

    path, shape, index  which output, its shape, and its worst element; wrong of total elements are
                        out of bound; bound: at the worst one
    axes                the letters of the slice's two axes, "" where the specification does not
                        name them
    origin              the row and the column at which the window begins
    actual, expected, ratio, within  the window, row by row
    """

    path: str
    shape: list[int]
    index: list[int]
    wrong: int
    total: int
    bound: Number
    axes: list[str]
    origin: list[int]
    actual: list[list[Number]]
    expected: list[list[Number]]
    ratio: list[list[Number]]
    within: list[list[bool]]


@dataclass(frozen=True)
class DrawnCase:
    """A case as it was drawn, before it was shrunk."""

    recipe: str
    picture: Picture

    def __str__(self) -> str:
        """In a line, for those who do not see the picture."""
        place = f" in {self.picture.path}" if self.picture.path != "output" else ""
        return f"{self.recipe}: {self.picture.wrong} of {self.picture.total} elements{place}"


@dataclass(frozen=True)
class Argument:
    """
    One argument of the case that is shown, or one part of it.

    kind      its dtype, or the type of what is no array
    values    as Python writes them; "" of an array of more numbers than a page has room for
    checksum  twelve hexadecimal digits of an array's bits, as float64 where it holds floats
    """

    name: str
    kind: str
    shape: list[int]
    values: str
    checksum: str


@dataclass(frozen=True)
class Evidence:
    """
    The picture of the smallest failing case, where numbers were compared; that of a case as it was
    drawn, where it has more to show; and the arguments of the smallest. A check has none: it makes
    many calls.
    """

    picture: Picture | None = None
    drawn: DrawnCase | None = None
    inputs: tuple[Argument, ...] = ()


MOST_NUMBERS = 64
"""Arrays of so many numbers are written out."""


def describe_inputs(case: Case) -> tuple[Argument, ...]:
    """Describe the arguments of a case: the values where they are few, else their sizes."""
    named = (pair for name, value in case.inputs.items() for pair in _named_leaves(name, value))
    return tuple(_describe_argument(name, value, case.dtype) for name, value in named)


def _named_leaves(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """Name each leaf of an argument: ``parameters.query.weight``, ``layers[0]``."""
    if isinstance(tree, dict):
        for key, branch in tree.items():
            yield from _named_leaves(f"{name}.{key}", branch)
    elif isinstance(tree, list | tuple):
        for number, branch in enumerate(tree):
            yield from _named_leaves(f"{name}[{number}]", branch)
    else:
        yield name, tree


def _describe_argument(name: str, value: Any, dtype: str) -> Argument:
    if not isinstance(value, ndarray):
        return Argument(name, type(value).__name__, [], repr(value), "")
    kind = dtype if value.dtype.kind == "f" else value.dtype.name
    written = write_numbers(value, dtype) if value.size <= MOST_NUMBERS else ""
    bits = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:12]
    return Argument(name, kind, list(value.shape), written, bits)


def picture_of_error(operation: str, error: Disagreement | None) -> Picture | None:
    """Draw the picture of what an error compared, if it compared numbers."""
    if error is None or error.comparison is None:
        return None
    return picture(error.path, error.comparison, axes_of(operation, error.path))


def most_informative(cases: Sequence[Case]) -> Case:
    """
    Choose the case whose picture shows most: what has been shrunk is often a single element, and a
    pattern wants room.
    """
    return max(
        cases,
        key=lambda case: (
            visible_extent(case.recipe) if math.prod(case.recipe.sizes.values()) <= LARGE else 0
        ),
    )


def visible_extent(recipe: Recipe) -> int:
    """
    Count how many elements of a slice can be shown, roughly: of queries and keys where there are
    any, else of heads.
    """
    letters = {"N", "M"} & recipe.sizes.keys() or {"H"}
    return math.prod(min(recipe.sizes.get(letter, 1), WINDOW) for letter in letters)


LARGE = 1_000_000
"""Recipes of more numbers than this are too slow to be called for a picture alone."""


@dataclass(frozen=True)
class Window:
    """
    The part of a slice that is shown: its first row and column, and how many there are of each.
    """

    row: int
    column: int
    rows: int
    columns: int

    def of(self, plane: ndarray) -> ndarray:
        return plane[self.row : self.row + self.rows, self.column : self.column + self.columns]


def picture(path: str, comparison: Comparison, axes: tuple[str, ...] = ()) -> Picture:
    """Draw the picture of a comparison; ``axes`` are the letters of the output's axes."""
    shape = comparison.arrays[0].shape
    *_, row, column = (0, 0, *comparison.index)
    window = window_around(row, column, *(1, 1, *shape)[-2:])
    actual, expected, ratio, within = (
        window.of(slice_at(array, comparison.index)) for array in comparison.arrays
    )
    named = len(shape) >= 2 and (len(axes) == len(shape) or "..." in axes)
    return Picture(
        path=path,
        shape=list(shape),
        index=list(comparison.index),
        wrong=comparison.wrong,
        total=comparison.total,
        bound=round_number(comparison.bound),
        axes=list(axes[-2:]) if named else ["", ""],
        origin=[window.row, window.column],
        actual=numbers(actual),
        expected=numbers(expected),
        ratio=numbers(ratio, digits=3),
        within=[[bool(x) for x in line] for line in within],
    )


def numbers(plane: ndarray, digits: int = 9) -> list[list[Number]]:
    return [[round_number(x, digits) for x in line] for line in plane]


def window_around(row: int, column: int, rows: int, columns: int) -> Window:
    """Cut out a window of a slice with the element in its middle, as far as the edges let it."""
    height, width = min(rows, WINDOW), min(columns, WINDOW)
    first = [
        min(max(at - extent // 2, 0), size - extent)
        for at, extent, size in ((row, height, rows), (column, width, columns))
    ]
    return Window(first[0], first[1], height, width)


def slice_at(array: ndarray, index: tuple[int, ...]) -> ndarray:
    """Cut out the last two axes at an index; a vector is one row."""
    return np.atleast_2d(array[index[:-2]] if array.ndim > 2 else array)


def round_number(x: float, digits: int = 9) -> Number:
    return float(f"{float(x):.{digits}g}") if math.isfinite(x) else str(float(x))


def axes_of(operation: str, path: str) -> tuple[str, ...]:
    """
    Read the letters of an output's axes as the specification annotates them, () where it names
    none: ("B", "H", "N", "E").
    """
    returned = CATALOGUE[operation].specification.__annotations__.get("return")
    place = path.partition("[")[2].partition("]")[0]
    parts = get_args(returned) if place else ()
    annotation = parts[int(place)] if place.isdigit() and int(place) < len(parts) else returned
    return tuple(str(float_axes(annotation) or getattr(annotation, "dim_str", "")).split())
