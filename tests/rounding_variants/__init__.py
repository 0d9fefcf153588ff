"""
Correct implementations that differ from the specification in every way that rounding allows: the
bounds must hold for each of them.

All are NumPy, and all are generated: :mod:`tests.rounding_variants.grammar` says what may be
chosen, :mod:`tests.rounding_variants.machine` how a choice is computed, the other modules what is.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.bounds import bound
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves
from attnverify.precision import FORMATS
from attnverify.reference.oracle import evaluate_spec
from tests.rounding_variants.attention import SCORES, attention
from tests.rounding_variants.gradients import gradient
from tests.rounding_variants.grammar import Derivation
from tests.rounding_variants.layer_gradients import LAYER_GRADIENTS
from tests.rounding_variants.layers import LAYERS
from tests.rounding_variants.machine import Machine
from tests.rounding_variants.merging import merge, merge_gradient
from tests.rounding_variants.operations import OPERATIONS
from tests.rounding_variants.transformer_xl_gradients import TRANSFORMER_XL_GRADIENTS
from tests.rounding_variants.turning import TURNS

MERGES = {"merge_attention": merge, "merge_attention_grad": merge_gradient}

__all__ = ["answer", "compute", "largest_share", "share_of_bound"]


def compute(derived: Derivation, inputs: dict[str, Any], dtype: str) -> Any:
    """What the implementation answers."""
    return answer(Machine.of(derived, dtype), derived.operation, inputs)


def answer(at: Machine, operation: str, inputs: dict[str, Any]) -> Any:
    """What the operation is on this machine."""
    with np.errstate(all="ignore"):
        if operation in LAYER_GRADIENTS:
            return LAYER_GRADIENTS[operation](at, **inputs)
        if operation in TRANSFORMER_XL_GRADIENTS:
            return TRANSFORMER_XL_GRADIENTS[operation](at, **inputs)
        if own := (MERGES | TURNS).get(operation):
            return own(at, **inputs)
        if operation.endswith("_grad"):
            return gradient(at, operation, inputs)
        if operation in SCORES:
            return attention(at, operation, inputs)
        return (OPERATIONS.get(operation) or LAYERS[operation])(at, **inputs)


def share_of_bound(
    derived: Derivation, inputs: dict[str, Any], dtype: str, beyond: float = 0.0
) -> float:
    """
    The implementation's largest error as a share of its bound, where the bound is finite and at
    least ``beyond`` times the rounding of the output; inf where NaN came out.
    """
    operation, worst = derived.operation, 0.0
    rounding = beyond * FORMATS[dtype].u
    with np.errstate(all="ignore"):
        expected = evaluate_spec(CATALOGUE[operation], inputs)
        limits = bound(operation, inputs, Machine.of(derived, dtype).P)
        actual = compute(derived, inputs, dtype)
        for a, e, E in zip(leaves(actual), leaves(expected), leaves(limits), strict=True):
            if isinstance(e, ndarray):
                E = np.where(rounding * np.abs(e) > E, np.inf, E)
                a = np.where(np.isinf(e) & (a == e), 0.0, a)  # an lse of no key is minus infinity
                worst = max(worst, largest_share(a, np.where(np.isinf(e), 0.0, e), E))
    return worst


def largest_share(actual: ndarray, expected: ndarray, limit: ndarray) -> float:
    assert actual.shape == expected.shape == limit.shape and not np.isnan(limit).any()
    error = np.abs(actual - expected)
    share = np.where(np.isinf(limit) | (error == 0), 0.0, error / limit)
    return float(np.where(np.isnan(share), np.inf, share).max(initial=0.0))
