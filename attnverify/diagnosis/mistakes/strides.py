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

ARGUMENTS = (
    *("query", "query_rope", "key", "value", "key_pages", "value_pages", "latent", "key_rope"),
    *("x", "score", "outputs", "d_output"),
)
TOGETHER = ("key", "value"), ("key_pages", "value_pages")
"""What a kernel reads by one function."""


def stride_mistakes(operation: Operation) -> Iterator[tuple[str, Callable[[Observation], Any]]]:
    """Words and function of each mistake: of one argument, of two that go together, of all."""
    known = ARGUMENTS if operation.outside is None else operation.outside.floats
    names = [name for name in known if name in operation.arguments]
    several = (*(each for each in TOGETHER if {*each} <= {*names}), tuple(names))
    for words, read in READINGS.items():
        for each in dict.fromkeys((*((name,) for name in names), *filter(None, several))):
            told = " and ".join(filter(None, (", ".join(each[:-1]), *each[-1:])))
            yield f"{told} read {words}", partial(with_reading, operation, each, read)


def from_first_element(x: ndarray) -> ndarray:
    """
    What lies from the first element on; raises where that is more than there is. PyTorch has no
    negative strides: it was given a copy.
    """
    if min(x.strides, default=0) < 0:
        return x
    memory, start = in_memory(x)
    return memory[start : start + x.size].reshape(x.shape)


def end_to_end(x: ndarray) -> ndarray:
    """
    What lies where each part of the first axis followed the one before it; raises beyond the end.
    """
    memory, start = in_memory(x)
    steps = [stride // x.itemsize for stride in x.strides]
    if x.ndim > 1:
        steps[0] = x.shape[1] * steps[1]
    places = np.ogrid[tuple(map(slice, x.shape))]
    return np.take(memory, start + sum(at * step for at, step in zip(places, steps, strict=True)))


def in_memory(x: ndarray) -> tuple[ndarray, int]:
    """All that an array is a part of, in order, and where its first element lies."""
    base = x
    while isinstance(base.base, ndarray):
        base = base.base
    return base.reshape(-1), (x.ctypes.data - base.ctypes.data) // x.itemsize


READINGS: dict[str, Callable[[ndarray], ndarray]] = {
    "in the order of memory, its strides forgotten": lambda x: x.ravel(order="K").reshape(x.shape),
    "as if it were contiguous, its strides forgotten": from_first_element,
    "as if it were contiguous, gaps in its memory forgotten": lambda x: (
        x if np.may_share_memory(x.ravel(order="K"), x) else from_first_element(x)
    ),
    "as if the parts of its first axis lay end to end": end_to_end,
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
