"""
Layers at the width of a model, where the worst case of rounding says nothing: held to the
statistical bound.

Every output, and the coefficient of the residual along the derivative by the logarithm of each
parameter, is held to :mod:`attnverify.checks.width.statistical` in a call of ordinary numbers. A
right kernel is beyond it in one call of 1 / ``IMPROBABLE`` at most. One that is, is called again on
``DRAWS`` - 1 fresh draws, which have nothing in common: if it is beyond it in all of them, it is
*improbable*.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from math import log10
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import CATALOGUE, INNER
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.checks.projected_factors import (
    Directions,
    directions_of,
    own_rounding,
    project,
)
from attnverify.checks.width.statistical import (
    IMPROBABLE,
    NothingSaid,
    statistical_bound,
    tangents_of,
)
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Inputs
from attnverify.judge.comparison import compare
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import arrays_of_call, call
from attnverify.judge.judging import compare_outputs
from attnverify.precision import Precision
from attnverify.timing import account_for

Case = Callable[[Implementation, str], float]
Model = tuple[int, int, int]
"""The width of a model, how many layers a stack has, and how many widths a feed-forward has."""

DRAWS = 4
APART = 1000
"""Between the seeds of the draws of one check."""

ROWS = {"B": 1, "N": 8, "M": 8, "S": 8, "P": 8, "D": 64, "E": 64, "K": 64}
USUAL: Model = (384, 1, 4)
MODELS = {
    "quick": (),
    "default": (USUAL,),
    "thorough": (USUAL, (384, 1, 0), (384, 4, 0), (1024, 1, 0)),
}
"""Of each profile; a layer that has no feed-forward has none, and one that is no stack is one."""


@dataclass(frozen=True)
class Call:
    """A drawn call: what is expected, and what is said of each output and of each factor."""

    inputs: Inputs
    expected: Any
    bounds: Any
    directions: Directions
    allowed: dict[str, float]


def model_width_checks(operation: str, profile: str, seed: int) -> list[tuple[str, Case]]:
    """Named checks of a layer, forward, at the profile's widths."""
    op = CATALOGUE[operation]
    if op.is_gradient or not op.traits.parameters:
        return []
    stack, option = "L" in op.sizes, bool(op.traits.option)
    models = [(F, L if stack else 1, fed * option) for F, L, fed in MODELS[profile]]
    return [
        (f"statistical: {name_of(model)}", partial(judge_at_width, operation, model, seed))
        for model in dict.fromkeys(models)
    ]


def name_of(model: Model) -> str:
    F, L, fed = model
    return f"F={F}" + f", {L} layers" * (L > 1) + ", feed-forward" * (fed > 0)


def judge_at_width(
    operation: str, model: Model, seed: int, implementation: Implementation, dtype: str
) -> float:
    """
    Give the worst share of the statistical bound. Raises Disagreement if it is exceeded in every
    draw, and Unsupported where nothing is said.
    """
    precision, told = implementation.precision(dtype), ""
    for draw in range(DRAWS):
        this = drawn_call(operation, model, dtype, seed + APART * draw, precision)
        share, words = hold(this, implementation, dtype)
        if share <= 1:
            return share
        told = told or words
    raise Disagreement(
        f"improbable: {told}; that is so in {DRAWS} of {DRAWS} independent draws, in each of which "
        f"rounding comes to so much with a probability of {IMPROBABLE:.0e} at most, in all of them "
        f"of 1e{DRAWS * log10(IMPROBABLE):.0f}",
        "improbable",
        share,
    )


@lru_cache(maxsize=16)
def drawn_call(operation: str, model: Model, dtype: str, seed: int, precision: Precision) -> Call:
    """Draw standard normal inputs and ordinary parameters, and bound what rounding comes to."""
    op, (F, L, fed) = CATALOGUE[operation], model
    sizes = ROWS | {"H": F // ROWS["D"], "F": F, "L": L} | ({INNER: fed * F} if fed else {})
    inputs = expand(fixed_recipe(op, sizes, "normal", None, seed), dtype)
    if "w_query" in inputs["parameters"]:  # weights of 1 / sqrt(F), as the other layers have
        smaller = {name: x / 2 ** (F.bit_length() // 2) for name, x in inputs["parameters"].items()}
        inputs = inputs | {"parameters": smaller}
    with account_for("oracle"):
        expected = op.reference(**inputs)
        directions = directions_of(op, inputs, own_rounding(op, inputs))
    try:
        bounds, allowed = what_is_said(operation, inputs, directions, precision)
    except NothingSaid as reason:
        raise Unsupported(f"not judged: {reason}") from reason
    found = iter(bounds)
    return Call(inputs, expected, map_leaves(lambda _: next(found), expected), directions, allowed)


def what_is_said(
    operation: str, inputs: Inputs, directions: Directions, precision: Precision
) -> tuple[list[ndarray], dict[str, float]]:
    """Bound each output, and the coefficient of each factor."""
    tangents, rest = tangents_of(operation, inputs, precision)
    numbers = 2 * sum(each.size for each in rest)
    bounds = [
        statistical_bound(*each, numbers, precision) for each in zip(tangents, rest, strict=True)
    ]
    allowed = {}
    for name, (_, _, column) in directions.items():
        shares = np.array([project(each, column)[0] for each in tangents[0]])
        left = np.array(project(rest[0], column)[0])
        allowed[name] = float(statistical_bound(shares, left, 2 * len(directions), precision))
    return bounds, allowed


def hold(this: Call, implementation: Implementation, dtype: str) -> tuple[float, str]:
    """
    Give the worst share of a bound, and in words the worst element, or of the factors beyond their
    bounds the one that explains most. Raises Unsupported where the bound says nothing.
    """
    bound, size = next(leaves(this.bounds)), np.sqrt(np.mean(next(leaves(this.expected)) ** 2))
    if not np.median(bound) < size:
        raise Unsupported("not judged: the bound exceeds the output")
    outputs = call(implementation, arrays_of_call(implementation, this.inputs, dtype))
    each = list(compare_outputs(outputs, this.expected, this.bounds, dtype, implementation))
    share, words = max((comparison.budget, f"{path}: {comparison}") for path, comparison in each)
    output, most = each[0][1].arrays[0], 0.0
    for name, (_, expected, column) in this.directions.items():
        off, explained = project(output - expected, column)
        held = compare(np.array(off), np.array(0.0), np.array(this.allowed[name]))
        share = max(share, held.budget)
        if not held.passed and explained > most:
            most, side = explained, "low" if off < 0 else "high"
            words = f"{name} is {abs(off):.2%} {side}, rounding makes it {this.allowed[name]:.1e}"
    return share, words
