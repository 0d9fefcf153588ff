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
from attnverify.inputs.expand import Inputs, Recipe, expand
from attnverify.inputs.masks import pairs_shape
from attnverify.judge import weak_cases
from attnverify.precision import REFERENCE, Precision
from attnverify.timing import spent_on

LOOPS = 400
"""
Most pairs that the law's loops are asked for; beyond, numpy_ref answers, which is held to the law
at small sizes.
"""


@dataclass(frozen=True)
class Lawful:
    """Inputs and expected outputs. They are shared, and read-only."""

    inputs: Inputs
    expected: Any
    source: str


@lru_cache(maxsize=2048)
def lawful(recipe: Recipe, dtype: str) -> Lawful:
    """The law's answer to a recipe."""
    inputs = expand(recipe, dtype)
    expected, source = answer(CATALOGUE[recipe.operation], inputs)
    for leaf in leaves(expected):
        if isinstance(leaf, np.ndarray):
            leaf.setflags(write=False)
    return Lawful(inputs, expected, source)


def answer(operation: Operation, inputs: Inputs) -> tuple[Any, str]:
    """The law's answer to inputs, and who gave it."""
    shape = pairs_shape(operation, inputs)
    small = shape is None or np.prod(shape) <= LOOPS
    with np.errstate(all="ignore"), spent_on("oracle"):
        if small:
            return operation.law(**inputs), "spec"
        return operation.reference(**inputs), "numpy_ref"


@lru_cache(maxsize=4096)
def bounded(recipe: Recipe, dtype: str, precision: Precision) -> Any:
    """
    The error bounds of the outputs under a declared arithmetic; None for an operation that moves
    numbers and computes none.
    """
    operation = CATALOGUE[recipe.operation]
    if operation.exact:
        return None
    return bounds.bound(
        operation.name, expand(recipe, dtype), precision, references_own(recipe, dtype)
    )


@lru_cache(maxsize=2048)
def references_own(recipe: Recipe, dtype: str) -> Any:
    """
    The part of the bounds that is the same under every declared arithmetic: what the law's own
    float64 may err.
    """
    return bounds.error(recipe.operation, expand(recipe, dtype), REFERENCE)


@lru_cache(maxsize=4096)
def strong(recipe: Recipe, dtype: str, precision: Precision) -> bool:
    """Whether no cheap impostor passes this case."""
    with np.errstate(all="ignore"):
        return weak_cases.all_noticed(
            wrong_answers(recipe, dtype),
            lawful(recipe, dtype).expected,
            bounded(recipe, dtype, precision),
        )


@lru_cache(maxsize=512)
def wrong_answers(recipe: Recipe, dtype: str) -> list[Any]:
    """
    What the impostors answer; several implementations are asked the same, one after the other.
    """
    case = lawful(recipe, dtype)
    with np.errstate(all="ignore"):
        return list(weak_cases.impostors(CATALOGUE[recipe.operation], case.inputs, case.expected))
