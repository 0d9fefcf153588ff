"""
Strides that are forgotten: arrays that are read in the order in which they lie in memory, or from
their first element on as if they were contiguous.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.array_libraries import to_dtype
from attnverify.catalogue.operation import Operation
from attnverify.catalogue.pytrees import map_leaves
from attnverify.inputs.memory_layouts import arrange
from attnverify.inputs.recipe import layout_kinds
from attnverify.judge.observation import Observation

ARGUMENTS = ("query", "key", "value", "x", "score", "d_output")


def stride_mistakes(operation: Operation) -> Iterator[tuple[str, Callable[[Observation], Any]]]:
    """Words and function of each mistake: of one argument, and of all arrays."""
    known = ARGUMENTS if operation.outside is None else operation.outside.floats
    names = [name for name in known if name in operation.arguments]
    for words, read in READINGS.items():
        for name in names:
            yield f"{name} read {words}", partial(with_reading, operation, (name,), read)
        if len(names) > 1:
            told = f"{', '.join(names[:-1])} and {names[-1]}"
            yield f"{told} read {words}", partial(with_reading, operation, tuple(names), read)


def from_first_element(x: ndarray) -> ndarray:
    """
    What lies from the first element on; raises where that is more than there is. PyTorch has no
    negative strides: it was given a copy.
    """
    if min(x.strides, default=0) < 0:
        return x
    base = x
    while isinstance(base.base, ndarray):
        base = base.base
    start = (x.ctypes.data - base.ctypes.data) // x.itemsize
    return base.reshape(-1)[start : start + x.size].reshape(x.shape)


READINGS: dict[str, Callable[[ndarray], ndarray]] = {
    "in the order of memory, its strides forgotten": lambda x: x.ravel(order="K").reshape(x.shape),
    "as if it were contiguous, its strides forgotten": from_first_element,
    "as if it were contiguous, gaps in its memory forgotten": lambda x: (
        x if np.may_share_memory(x.ravel(order="K"), x) else from_first_element(x)
    ),
}


def with_reading(
    operation: Operation,
    names: tuple[str, ...],
    read: Callable[[ndarray], ndarray],
    seen: Observation,
) -> Any:
    """Return the reference with some arguments as they are read where they lie."""
    given = arranged_inputs(seen)
    changed = {name: widened(read(given[name])) for name in names}
    return operation.reference(**seen.inputs | changed)


def arranged_inputs(seen: Observation) -> dict[str, Any]:
    """The inputs as a backend was given them, in the dtype and layout of the recipe."""
    kinds = layout_kinds(seen.recipe, len(seen.inputs))
    return {
        name: arranged(x, seen.dtype, kind)
        for (name, x), kind in zip(seen.inputs.items(), kinds, strict=True)
    }


def arranged(tree: Any, dtype: str, kind: str) -> Any:
    return map_leaves(
        lambda leaf: (
            arrange(to_dtype, leaf.copy(), dtype, kind) if isinstance(leaf, ndarray) else leaf
        ),
        tree,
    )


def widened(leaf: Any) -> Any:
    return (
        leaf.astype(np.float64)
        if isinstance(leaf, ndarray) and leaf.dtype.kind not in "biu"
        else leaf
    )
