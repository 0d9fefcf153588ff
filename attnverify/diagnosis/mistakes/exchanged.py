"""
Two neighbours along an axis of the output, each in the place of the other.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.inputs.recipe import Inputs

AXES = {"columns": -1, "rows": -2, "heads": -3, "batch elements": -4}


def exchanged_pairs(
    operation: Operation,
) -> Iterator[tuple[str, Callable[[Operation, Inputs], Any]]]:
    """Words and function of each axis of which the first two places may be exchanged."""
    if not operation.is_gradient and operation.axes:
        for name, axis in AXES.items():
            yield f"the first two {name} of the output exchanged", partial(_answer, axis=axis)


def _answer(operation: Operation, inputs: Inputs, axis: int) -> Any:
    found = operation.reference(**inputs)
    first = found[0] if isinstance(found, tuple) else found
    if not isinstance(first, ndarray) or first.ndim < -axis or first.shape[axis] < 2:
        return found
    order = np.arange(first.shape[axis])
    order[:2] = 1, 0
    changed = first.take(order, axis=axis)
    return (changed, *found[1:]) if isinstance(found, tuple) else changed
