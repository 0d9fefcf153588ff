"""NumPy's functions that move elements and compute nothing, and those that order them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.derived.tracing.array import FUNCTIONS, Traced, decide, move, node_of, numbers_of
from attnverify.derived.tracing.elementwise import where
from attnverify.derived.tracing.node import refuse
from attnverify.derived.tracing.steps import step

Function = Callable[..., Any]

SORTED = 64
"""Computed values that are sorted at most, in as many rounds of comparisons."""

OF_ONE = (
    *(np.swapaxes, np.transpose, np.moveaxis, np.reshape, np.repeat, np.tile, np.broadcast_to),
    *(np.expand_dims, np.squeeze, np.take, np.take_along_axis, np.roll, np.flip, np.diagonal),
    *(np.ravel, np.delete, np.rot90, np.rollaxis, np.atleast_1d, np.atleast_2d),
)
OF_MANY = (np.concatenate, np.stack, np.hstack, np.vstack)
KEEPS = (np.tril, np.triu)
"""Functions that replace what they do not keep by 0."""


def _of_one(function: Function) -> Function:
    return lambda x, *args, **options: move(lambda i: function(i, *args, **options), [x])


def _of_many(function: Function) -> Function:
    return lambda xs, *args, **options: move(lambda *i: function(i, *args, **options), list(xs))


def _keeps(function: Function) -> Function:
    return lambda x, *args: move(lambda i: function(i + 1, *args) - 1, [x])


FUNCTIONS |= {function: _of_one(function) for function in OF_ONE}
FUNCTIONS |= {function: _of_many(function) for function in OF_MANY}
FUNCTIONS |= {function: _keeps(function) for function in KEEPS}


def pad(x: Any, width: Any, mode: str = "constant", constant_values: float = 0.0) -> Traced:
    if mode != "constant":
        raise refuse(f"np.pad with mode={mode!r}")
    return padded(x, width, constant_values)


@step
def padded(x: Any, width: Any, value: float) -> Traced:
    """Put a number around an array."""
    return move(lambda i: np.pad(i, width, constant_values=-1), [x], value)


def split(x: Any, parts: Any, axis: int = 0) -> list[Traced]:
    count = parts if isinstance(parts, int) else len(parts) + 1
    return [move(lambda i, k=k: np.split(i, parts, axis)[k], [x]) for k in range(count)]


def append(x: Any, values: Any, axis: int | None = None) -> Traced:
    return move(lambda i, j: np.append(i, j, axis), [x, values])


def argsort(x: Traced, axis: int = -1, most: int | None = None, **_: Any) -> ndarray:
    """
    Order by the values in float64, or find the first so many; neighbours that are too near leave
    the order open, those behind the last one that is asked for alone.
    """
    order = np.argsort(x.node.value, axis, kind="stable")
    first = slice(None if most is None else most + 1)
    ordered = move(lambda i: np.moveaxis(i, axis, -1)[..., first], [_taken(x, order, axis)])
    if ordered.shape[-1] > 1:
        decide([(ordered[..., 1:] - ordered[..., :-1]).node], open_at_zero=True)
    return np.take(order, np.arange(order.shape[axis])[:most], axis)


def _taken(x: Traced, order: ndarray, axis: int) -> Traced:
    return move(lambda i: np.take_along_axis(i, order, axis), [x])


def put_along_axis(x: Traced, indices: Any, values: Any, axis: int) -> None:
    """Write in place, at one index of the axis for each of the others."""
    if not isinstance(x, Traced):
        raise refuse("np.put_along_axis of traced values into a plain array")
    x.write(np.take_along_axis(numbers_of(x.node), indices, axis), node_of(values))


def sort(x: Traced, axis: int = -1, **_: Any) -> Traced:
    """
    Sort. What was computed is sorted as a network of comparators does it, by minima and maxima
    (odd-even transposition; Knuth, The Art of Computer Programming 3, 5.3.4): no order is decided,
    and the k-th smallest of numbers that move by at most E moves by at most E itself.
    """
    if x.node.kind == "leaf":
        return _taken(x, np.argsort(x.node.value, axis, kind="stable"), axis)
    found = move(lambda i: np.moveaxis(i, axis, -1), [x]).copy()
    size = found.shape[-1]
    if size > SORTED:
        raise refuse(f"np.sort of more than {SORTED} computed values")
    for start in (place % 2 for place in range(size)):
        lower, upper = found[..., start : size - 1 : 2], found[..., start + 1 :: 2]
        least, most = np.minimum(lower, upper), np.maximum(lower, upper)
        found[..., start : size - 1 : 2], found[..., start + 1 :: 2] = least, most
    return move(lambda i: np.moveaxis(i, -1, axis), [found])


def argmax(x: Traced, axis: int | None = None, **_: Any) -> Any:
    """Find where the maximum is; a second one that is too near leaves it open."""
    place = np.argmax(x.node.value, axis, keepdims=True)
    top = move(lambda i: np.take_along_axis(i, place, axis), [x])
    others = np.ones(x.shape, bool)
    np.put_along_axis(others, place, False, axis)
    if others.any():
        decide([where(others, top - x, 1.0).node], open_at_zero=True)
    return np.squeeze(place, axis)


FUNCTIONS |= {
    np.pad: pad,
    np.split: split,
    np.array_split: split,
    np.append: append,
    np.argsort: argsort,
    np.put_along_axis: put_along_axis,
    np.sort: sort,
    np.argmax: argmax,
    np.argmin: lambda x, axis=None, **o: argmax(-x, axis),
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.size: lambda x: x.size,
    np.copy: lambda x: x.copy(),
    np.zeros_like: lambda x, **_: np.zeros(x.shape),
    np.ones_like: lambda x, **_: np.ones(x.shape),
    np.full_like: lambda x, value, **_: np.full(x.shape, value),
}
