"""
One bound per operation: the same name, the same parameters, and `precision`; the result has the
shape of the output.

Every formula stands in the docstring of the function that evaluates it. Inputs are float64 arrays
that the storage format holds exactly. A bound of inf marks an element outside the domain that the
Precision declares; a bound is never NaN.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.bounds import (
    alibi,
    attention,
    layers,
    relative,
    scores,
    transformer_xl,
)
from attnverify.bounds.gradients import attention as attention_gradients
from attnverify.bounds.gradients import layers as layer_gradients
from attnverify.bounds.gradients import relative as relative_gradients
from attnverify.bounds.gradients import scores as score_gradients
from attnverify.bounds.gradients import transformer_xl as transformer_xl_gradients
from attnverify.bounds.softmax_rows import added
from attnverify.bounds.today import grouped, quantized, rotary
from attnverify.catalogue.traits import TRAITS
from attnverify.precision import REFERENCE, Precision

_MODULES = (
    *(scores, attention, relative, alibi, layers, transformer_xl),
    *(score_gradients, attention_gradients, relative_gradients, layer_gradients),
    *(transformer_xl_gradients, grouped, quantized, rotary),
)

BOUNDS: dict[str, Callable[..., Any]] = {
    name: twin
    for module in _MODULES
    for name, twin in vars(module).items()
    if name.removesuffix("_grad") in TRAITS and not isinstance(twin, ModuleType)
}
"""
The bound of each operation: the function of its name in these modules; beside them those that are
derived for operations from outside (attnverify/specified).
"""

Bound = ndarray | tuple["Bound", ...] | list["Bound"] | None


def bound(operation: str, inputs: Mapping[str, Any], precision: Precision) -> Any:
    """
    slack * (the bound under `precision` + the float64 reference's own), in the structure of the
    operation's output.
    """
    return scaled(error(operation, inputs, precision, REFERENCE), precision.slack)


def with_reference(own: Any, reference: Any, slack: float) -> Any:
    """Compute what :func:`bound` does, from the two errors that :func:`prepare` gave."""
    return scaled(added([own, reference]), slack)


def error(operation: str, inputs: Mapping[str, Any], *precisions: Precision) -> Any:
    """Compute the sum of the errors that these arithmetics may make."""
    with np.errstate(all="ignore"):
        return BOUNDS[operation](**inputs, precision=precisions)


def prepare(operation: str, inputs: Mapping[str, Any]) -> Callable[[Precision], Any]:
    """
    Compute what the errors under all arithmetics have in common, such as scores and weights; what
    comes back is :func:`error` under one of them.
    """
    found = error(operation, inputs)
    return found if callable(found) else partial(error, operation, inputs)


def scaled(E: Any, slack: float) -> Any:
    """Multiply the bounds of every output."""
    if slack == 1:
        return E
    if isinstance(E, dict):
        return {name: scaled(each, slack) for name, each in E.items()}
    if isinstance(E, list | tuple):
        return type(E)(scaled(each, slack) for each in E)
    return None if E is None else E * slack
