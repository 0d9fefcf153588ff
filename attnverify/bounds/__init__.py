"""
One bound per operation: the same name, the same parameters, and `precision`; the result has the
shape of the output.

Every formula stands in the docstring of the function that evaluates it. Inputs are float64 arrays
that the storage format holds exactly. A bound of inf marks an element outside the domain that the
Precision declares; a bound is never NaN.
"""

from collections.abc import Callable, Mapping
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
from attnverify.catalogue.traits import EXACT, TRAITS
from attnverify.precision import REFERENCE, Precision

_MODULES = (
    *(scores, attention, relative, alibi, layers, transformer_xl),
    *(score_gradients, attention_gradients, relative_gradients, layer_gradients),
    transformer_xl_gradients,
)

BOUNDS: Mapping[str, Callable[..., Any]] = {
    name: twin
    for module in _MODULES
    for name, twin in vars(module).items()
    if name.removesuffix("_grad") in TRAITS and not isinstance(twin, ModuleType)
}
"""The bound of each operation: the function of its name in these modules."""

OPERATIONS = frozenset(BOUNDS) | EXACT

Bound = ndarray | tuple["Bound", ...] | list["Bound"] | None


def bound(
    operation: str, inputs: Mapping[str, Any], precision: Precision, reference: Bound = None
) -> Any:
    """
    slack * (the bound under `precision` + the float64 reference's own), in the structure of the
    operation's output.

    `reference`: the reference's own from :func:`error`, where several arithmetics are bounded on
    the same inputs.
    """
    E = (
        error(operation, inputs, precision, REFERENCE)
        if reference is None
        else added([error(operation, inputs, precision), reference])
    )
    return E if precision.slack == 1 else _scale_bound(E, precision.slack)


def error(operation: str, inputs: Mapping[str, Any], *precisions: Precision) -> Any:
    """Compute the sum of the errors that these arithmetics may make."""
    with np.errstate(all="ignore"):
        return BOUNDS[operation](**inputs, precision=precisions)


def _scale_bound(E: Any, slack: float) -> Any:
    if isinstance(E, dict):
        return {name: _scale_bound(each, slack) for name, each in E.items()}
    if isinstance(E, list | tuple):
        return type(E)(_scale_bound(each, slack) for each in E)
    return None if E is None else E * slack
