"""
What the law says of a recipe in a dtype: inputs, expected outputs, bounds, and whether the case is
strong.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from attnverify import bounds
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.expand import expand
from attnverify.inputs.masks import scores_shape
from attnverify.inputs.recipe import Inputs, Recipe
from attnverify.precision import REFERENCE, Precision
from attnverify.timing import account_for

MAX_PAIRS_FOR_SPEC = 400
"""
Most pairs that the law's loops are asked for; beyond, numpy_ref answers, which is held to the law
at small sizes.
"""


@dataclass(frozen=True)
class Expected:
    """Inputs and expected outputs. They are shared, and read-only."""

    inputs: Inputs
    expected: Any
    source: str


@lru_cache(maxsize=2048)
def expected_of(recipe: Recipe, dtype: str) -> Expected:
    """The law's answer to a recipe."""
    inputs = expand(recipe, dtype)
    expected, source = evaluate_spec(CATALOGUE[recipe.operation], inputs)
    for leaf in leaves(expected):
        if isinstance(leaf, np.ndarray):
            leaf.setflags(write=False)
    return Expected(inputs, expected, source)


def evaluate_spec(operation: Operation, inputs: Inputs) -> tuple[Any, str]:
    """The law's answer to inputs, and who gave it."""
    shape = scores_shape(operation, inputs)
    small = shape is None or np.prod(shape) <= MAX_PAIRS_FOR_SPEC
    with np.errstate(all="ignore"), account_for("oracle"):
        if small:
            return operation.law(**inputs), "spec"
        return operation.reference(**inputs), "numpy_ref"


@lru_cache(maxsize=4096)
def bounds_of(recipe: Recipe, dtype: str, precision: Precision) -> Any:
    """
    The error bounds of the outputs under a declared arithmetic; None for an operation that moves
    numbers and computes none.
    """
    operation = CATALOGUE[recipe.operation]
    if operation.exact:
        return None
    return bounds.bound(
        operation.name, expand(recipe, dtype), precision, reference_error(recipe, dtype)
    )


@lru_cache(maxsize=2048)
def reference_error(recipe: Recipe, dtype: str) -> Any:
    """
    The part of the bounds that is the same under every declared arithmetic: what the law's own
    float64 may err.
    """
    return bounds.error(recipe.operation, expand(recipe, dtype), REFERENCE)
