"""
Where in memory an array lies: the layouts that callers really have, and whether two arrays share
any of it. The neighbours of an array in memory are NaN.

transposed  heads and positions exchanged in memory, as in packed projections
packed      a slice of a wider last axis, as in a joint q/k/v
offset      not at the beginning of its buffer
expanded    a stride of 0 along heads (one key head for all) or along the columns of a gradient
reversed    a negative stride, where the library allows it
width_first the last axis not the densest one: keys stored [B H D M]
shared      one array as key and as value, wherever both are given

This file needs NumPy alone: the stand-alone script of a failure carries it along.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

Convert = Callable[[ndarray, str], Any]


def arrange(from_numpy: Convert, x: ndarray, dtype: str, kind: str) -> Any:
    """
    Arrange the array in one of the layouts; as the library makes it where it has no arrays of that
    layout.
    """
    if x.ndim == 0 or kind in ("contiguous", SHARED):
        return from_numpy(x, dtype)
    try:
        return LAYOUTS[kind](from_numpy, x, dtype)
    except (ValueError, TypeError, AttributeError, NotImplementedError):
        return from_numpy(x, dtype)


def transposed(from_numpy: Convert, x: ndarray, dtype: str) -> Any:
    a, b = (1, 2) if x.ndim == 4 else (0, x.ndim - 1)
    return from_numpy(np.ascontiguousarray(x.swapaxes(a, b)), dtype).swapaxes(a, b)


def packed(from_numpy: Convert, x: ndarray, dtype: str) -> Any:
    base, n = surrounded(x, axis=-1, before=x.shape[-1], after=x.shape[-1]), x.shape[-1]
    return from_numpy(base, dtype)[..., n : 2 * n]


def offset(from_numpy: Convert, x: ndarray, dtype: str) -> Any:
    return from_numpy(surrounded(x, axis=0, before=1, after=0), dtype)[1:]


def surrounded(x: ndarray, axis: int, before: int, after: int) -> ndarray:
    """Return the array between others that nobody may read."""
    shape, place = list(x.shape), [slice(None)] * x.ndim
    shape[axis] += before + after
    place[axis] = slice(before, before + x.shape[axis])
    base = np.full(shape, np.nan if x.dtype.kind == "f" else True, x.dtype)
    base[tuple(place)] = x
    return base


def expanded(from_numpy: Convert, x: ndarray, dtype: str) -> Any:
    for axis in (1, 0, -1) if x.ndim == 4 else (0, 1, -1)[: x.ndim]:
        first = x.take([0], axis=axis) if x.shape[axis] > 1 else None
        if first is not None and np.array_equal(np.broadcast_to(first, x.shape), x):
            one = from_numpy(first, dtype)
            return namespace(one).broadcast_to(one, x.shape)
    return from_numpy(x, dtype)


def namespace(x: Any) -> Any:
    """Return the top-level module that the array's type comes from."""
    return sys.modules[type(x).__module__.partition(".")[0]]


def width_first(from_numpy: Convert, x: ndarray, dtype: str) -> Any:
    if x.ndim < 2:
        return from_numpy(x, dtype)
    return from_numpy(np.ascontiguousarray(x.swapaxes(-1, -2)), dtype).swapaxes(-1, -2)


LAYOUTS = {
    "transposed": transposed,
    "packed": packed,
    "offset": offset,
    "expanded": expanded,
    "reversed": lambda from_numpy, x, dtype: from_numpy(np.ascontiguousarray(x[..., ::-1]), dtype)[
        ..., ::-1
    ],
    "width_first": width_first,
}

SHARED = "shared"


def share_key_and_value(given: dict[str, Any], kind: str) -> dict[str, Any]:
    """
    Return the arguments, one array in the place of key and value where the layout says so and
    they are shaped alike.
    """
    if kind != SHARED or "value" not in given or given["key"].shape != given["value"].shape:
        return given
    return given | {"value": given["key"]}


def shares_memory(one: Any, other: Any) -> bool:
    """
    Whether two arrays have an element in common; views of one buffer that lie apart have none.

    Where that cannot be told, of libraries that say no addresses and of strides that take too long
    to solve, nothing is shared.
    """
    a, b = element_map(one), element_map(other)
    try:
        return a is not None and b is not None and _share(a, b, 10**6)
    except np.exceptions.TooHardError:
        return False


_share: Any = np.shares_memory
"""With a limit to its work, which NumPy's types do not know."""


def element_map(x: Any) -> ndarray | None:
    """
    Return an array over the same bytes, on whatever device they are: for its addresses, not to
    read.
    """
    if isinstance(x, ndarray):
        return x
    place: dict[str, Any] | None
    if hasattr(x, "untyped_storage") and hasattr(x, "data_ptr"):
        size = x.element_size()
        place = {
            "shape": tuple(x.shape),
            "strides": tuple(size * n for n in x.stride()),
            "typestr": f"|V{size}",
            "data": (x.data_ptr(), True),
        }
    elif (place := getattr(x, "__cuda_array_interface__", None)) is None:
        return None
    if not place["data"][0]:  # nowhere: empty, or of a device without memory
        return None
    return np.asarray(Addresses({**place, "version": 3}))


class Addresses:
    """What NumPy takes for an array: its place in memory."""

    def __init__(self, place: dict[str, Any]) -> None:
        self.__array_interface__ = place
