"""
What most faults are: the right operation with an argument, an output or a parameter changed, or
gradients of a part of what arrives. Each makes a function, to stand in a row of a table.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.inputs.recipe import Inputs

Function = Callable[..., Any]
Change = Callable[[Any, Inputs], Any]
"""What stands in the place of an argument or an output, by what is there and all that is given."""


def where_given(function: Function, **changes: Change) -> Function:
    """Return the function with some arguments changed, each where it is given."""

    def wrong(**given: Any) -> Any:
        there = {name: x for name, x in given.items() if name in changes and x is not None}
        return function(**given | {name: changes[name](x, given) for name, x in there.items()})

    return wrong


def with_outputs(function: Function, changes: dict[int, Change]) -> Function:
    """Return the function with some of its outputs changed, by their places; where there are."""

    def wrong(**given: Any) -> Any:
        found = function(**given)
        outputs = [*found] if isinstance(found, tuple) else [found]
        for place, change in changes.items():
            if place < len(outputs):
                outputs[place] = change(outputs[place], given)
        return tuple(outputs) if isinstance(found, tuple) else outputs[0]

    return wrong


def with_parts(function: Function, place: int, change: Change) -> Function:
    """Return the function with some parameters, or their gradients, changed in one output."""
    return with_outputs(function, {place: lambda parts, given: parts | change(parts, given)})


def exchanged(function: Function, one: int, other: int) -> Function:
    """Return the function with two of its outputs exchanged."""

    def wrong(**given: Any) -> Any:
        found = [*function(**given)]
        found[one], found[other] = found[other], found[one]
        return tuple(found)

    return wrong


def of_part(
    function: Function, places: Sequence[int], part: Callable[[ndarray], ndarray]
) -> Function:
    """Return the right gradients, those at some places of a part of d_output alone."""

    def wrong(**given: Any) -> Any:
        found = [*function(**given)]
        alone = function(**given | {"d_output": part(given["d_output"])})
        for place in places:
            found[place] = alone[place]
        return tuple(found)

    return wrong


def along(axis: int, kept: Callable[[ndarray, int], Any]) -> Callable[[ndarray], ndarray]:
    """Return what leaves 0 where an axis is not kept, by its indices and its size."""

    def part(x: ndarray) -> ndarray:
        size = x.shape[axis]
        shape = [size if each == axis % x.ndim else 1 for each in range(x.ndim)]
        return np.where(np.asarray(kept(np.arange(size), size)).reshape(shape), x, 0)

    return part


def first(count: int, axis: int = 0) -> Callable[[ndarray], ndarray]:
    """Return what leaves 0 behind so many places of an axis."""
    return along(axis, lambda i, size: i < count)


def written(count: int, axis: int = 0) -> Change:
    """Return an output of which what lies behind so many places of an axis is 0."""
    return lambda output, given: first(count, axis)(output)


def normed_by(columns: int, x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
    """A norm whose mean and variance are those of the first columns."""
    part = x[..., :columns]
    deviation = np.sqrt(part.var(axis=-1, keepdims=True) + eps)
    y = weight * (x - part.mean(axis=-1, keepdims=True)) / deviation
    return y if bias is None else y + bias
