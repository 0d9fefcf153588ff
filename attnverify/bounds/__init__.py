"""
One bound per operation: the same name, the same parameters, and `precision`; the result has the
shape of the output.

Every formula stands in the docstring of the function that evaluates it. Inputs are float64 arrays
that the storage format holds exactly. A bound of inf marks an element outside the domain that the
Precision declares; a bound is never NaN.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.bounds.alibi import alibi_attention, get_alibi_biases, get_slopes
from attnverify.bounds.attention import (
    additive_attention,
    dropout,
    scaled_dot_product_attention,
    softmax,
)
from attnverify.bounds.gradients import (
    additive_attention_grad,
    alibi_attention_grad,
    scaled_dot_product_attention_grad,
)
from attnverify.bounds.layers import (
    alibi_multi_head_attention,
    multi_head_attention,
    multi_head_self_attention,
    relative_multi_head_attention,
    self_attention,
)
from attnverify.bounds.relative import (
    learned_relative_attention,
    learned_relative_score,
    sinusoidal_positions,
    transformer_xl_attention,
    transformer_xl_score,
)
from attnverify.bounds.relative_gradients import (
    learned_relative_attention_grad,
    transformer_xl_attention_grad,
)
from attnverify.bounds.scores import additive_score, scaled_dot_product_score
from attnverify.bounds.softmax_rows import added
from attnverify.bounds.transformer_xl import transformer_xl, transformer_xl_layer
from attnverify.catalogue.traits import EXACT
from attnverify.precision import REFERENCE, Precision

BOUNDS: Mapping[str, Callable[..., Any]] = {
    twin.__name__: twin
    for twin in (
        additive_score,
        scaled_dot_product_score,
        softmax,
        dropout,
        additive_attention,
        scaled_dot_product_attention,
        sinusoidal_positions,
        transformer_xl_score,
        transformer_xl_attention,
        learned_relative_score,
        learned_relative_attention,
        get_slopes,
        get_alibi_biases,
        alibi_attention,
        self_attention,
        multi_head_attention,
        multi_head_self_attention,
        relative_multi_head_attention,
        alibi_multi_head_attention,
        transformer_xl_layer,
        transformer_xl,
        additive_attention_grad,
        scaled_dot_product_attention_grad,
        transformer_xl_attention_grad,
        learned_relative_attention_grad,
        alibi_attention_grad,
    )
}

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
    return E if precision.slack == 1 else _times(E, precision.slack)


def error(operation: str, inputs: Mapping[str, Any], *precisions: Precision) -> Any:
    """The sum of the errors that these arithmetics may make."""
    with np.errstate(all="ignore"):
        return BOUNDS[operation](**inputs, precision=precisions)


def _times(E: Any, slack: float) -> Any:
    if isinstance(E, list | tuple):
        return type(E)(_times(each, slack) for each in E)
    return None if E is None else E * slack
