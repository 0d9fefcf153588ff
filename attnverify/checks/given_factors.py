"""
Factors measured on inputs that somebody brings: one that is off by less than any single element
shows.

A batch is one call, and nothing within a call may be taken as independent. So it is called several
times, each time with all its numbers moved by up to ``MOVED`` of themselves: what the batch is like
stays, and what is rounded falls otherwise. What the residual is projected on is the derivative at
the batch itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.dtypes import round_to
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.checks.projected_factors import (
    CALLS,
    Directions,
    accuse_significant,
    directions_of,
    has_projected_factors,
    measure_calls,
    own_rounding,
    project,
)
from attnverify.checks.systematic_error import derivative, factors_of
from attnverify.inputs.expand import expand
from attnverify.inputs.given import recipe_of_file
from attnverify.inputs.recipe import Inputs
from attnverify.precision import Precision
from attnverify.reference.rounded_stages import legal_answers
from attnverify.reference.staged_attention import spec_stages
from attnverify.timing import account_for

Case = Callable[[Implementation, str], None]

MOVED = 2.0**-6
"""How far a number is moved, of itself: by several units of the narrowest dtype."""

MOST_PAIRS = 2**22
"""Pairs of a query and a key beyond which thirty evaluations of the specification take too long."""


def given_factor_checks(operation: str, path: str) -> list[tuple[str, Case]]:
    """One check that measures every factor of an operation on the inputs of a file."""
    op = CATALOGUE[operation]
    if not (has_projected_factors(op) or factors_of(op)):
        return []
    sizes = recipe_of_file(op, path).sizes
    if np.prod([sizes.get(letter, 1) for letter in "BHNM"]) > MOST_PAIRS:
        return []
    return [("systematic: every factor on these inputs", partial(judge_given, operation, path))]


def judge_given(operation: str, path: str, implementation: Implementation, dtype: str) -> None:
    """Raise Disagreement if a factor is systematically off on the inputs of a file."""
    op = CATALOGUE[operation]
    measured = measure_calls(implementation, dtype, moved_calls(op, path, dtype))
    if op.is_staged and any(found.significant for found in measured.values()):
        legal = legal_on(op, path, dtype, implementation.precision(dtype))
        measured = {name: replace(x, legal=legal.get(name, ())) for name, x in measured.items()}
    accuse_significant(measured)


SIMULATED = 24
"""So many of the calls are made in the legal roundings too."""


def legal_on(
    op: Operation, path: str, dtype: str, precision: Precision
) -> dict[str, tuple[float, ...]]:
    """Measure every factor in the legal roundings of the stages, each over the same calls."""
    found: dict[str, list[list[float]]] = {}
    for inputs, columns in islice(moved_calls(op, path, dtype), SIMULATED):
        with account_for("oracle"):
            answers = list(legal_answers(spec_stages(op, inputs), precision))
        for name, (_, expected, column) in columns.items():
            shares = [project(answer - expected, column)[0] for answer in answers]
            found.setdefault(name, []).append(shares)
    return {name: tuple(np.mean(each, axis=0).tolist()) for name, each in found.items()}


def moved_calls(op: Operation, path: str, dtype: str) -> Iterator[tuple[Inputs, Directions]]:
    """The calls, each with what is expected of it and the directions at the batch itself."""
    inputs = expand(recipe_of_file(op, path), dtype)
    at_batch = directions_at(op, inputs)
    for number in range(CALLS):
        moved = move(inputs, dtype, np.random.default_rng(number))
        with account_for("oracle"):
            expected = list(leaves(op.reference(**moved)))
        yield (
            moved,
            {
                name: (place, expected[place], column)
                for name, (place, _, column) in at_batch.items()
            },
        )


def directions_at(op: Operation, inputs: Inputs) -> Directions:
    """The directions of a gradient, a layer, or an attention and its scores."""
    if not op.is_staged:
        return directions_of(op, inputs, own_rounding(op, inputs))
    is_float = getattr(inputs.get("mask"), "dtype", np.dtype(bool)).kind == "f"
    factors = [factor for factor in factors_of(op) if is_float or factor != "float mask"]
    with account_for("oracle"):
        stages, expected = spec_stages(op, inputs), next(leaves(op.reference(**inputs)))
        found = {factor: (0, expected, derivative(stages, factor)) for factor in factors}
    return {name: each for name, each in found.items() if np.any(each[2])}


def move(inputs: Inputs, dtype: str, rng: np.random.Generator) -> Inputs:
    """Move each number a little, but for those of masks: some of them are sentinels."""

    def of_leaf(x: Any) -> Any:
        if not isinstance(x, ndarray) or x.dtype.kind != "f":
            return x
        return round_to(x * (1 + MOVED * rng.uniform(-1, 1, x.shape)), dtype)

    return {
        name: x if name.endswith("mask") else map_leaves(of_leaf, x) for name, x in inputs.items()
    }
