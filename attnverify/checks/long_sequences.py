"""
Long sequences: the implementation runs in full, the specification answers for sampled rows alone.

A causal row sees a prefix of the keys, so that one query against this prefix is the whole truth
about it; 64 rows against 131072 keys cost a second. Faults that depend on size have no other
witness.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy import ndarray

from attnverify import bounds
from attnverify.backends.implementation import Implementation
from attnverify.catalogue.dtypes import largest
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.rows import has_independent_rows, sampled_rows, single_row
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Inputs, Recipe
from attnverify.judge.comparison import Comparison, compare
from attnverify.judge.errors import Disagreement
from attnverify.judge.invoke import arrays_of_call, call
from attnverify.judge.judging import checked_output
from attnverify.timing import account_for

Case = Callable[[Implementation, str], float | None]

LENGTHS: dict[str, tuple[tuple[int, int], ...]] = {
    "quick": (),
    "default": (),
    "thorough": ((3, 131072), (4097, 4097), (1025, 2049)),
}


def long_sequence_checks(operation: str, profile: str) -> list[tuple[str, Case]]:
    """Named checks of one operation at the profile's lengths."""
    if not has_independent_rows(CATALOGUE[operation]):
        return []
    return [
        (f"long: N={N} M={M}", partial(judge_long, long_recipe(operation, N, M)))
        for N, M in LENGTHS[profile]
    ]


def long_recipe(operation: str, N: int, M: int) -> Recipe:
    sizes = {"B": 1, "H": 2, "N": N, "M": M, "D": 16, "E": 8, "Q": 4, "K": 5, "A": 6}
    return fixed_recipe(CATALOGUE[operation], sizes | {"P": max(N, M)}, "needles", seed=11)


def judge_long(recipe: Recipe, implementation: Implementation, dtype: str) -> float:
    """Hold sampled rows of a long call to the specification; the worst share of a bound."""
    inputs = expand(recipe, dtype)
    given = arrays_of_call(implementation, inputs, dtype)
    output = call(implementation, given)
    N, E = recipe.sizes["N"], recipe.sizes["E"]
    result = checked_output(
        output, np.zeros((*inputs["query"].shape[:-1], E)), dtype, implementation, "output"
    )
    worst = 0.0
    for i in sampled_rows(N):
        comparison = judge_row(implementation, inputs, result, i, dtype)
        if not comparison.passed:
            raise Disagreement(
                f"row {i} of {N}: {comparison}\n  recipe: {recipe}",
                budget=comparison.budget,
                comparison=comparison,
                path=f"row {i} of {N}",
            )
        worst = max(worst, comparison.budget)
    return worst


def judge_row(
    implementation: Implementation, inputs: Inputs, result: ndarray, i: int, dtype: str
) -> Comparison:
    """
    Hold one row of a result to the specification: of the output, or of the query's gradient where
    the operation is a gradient.

    What is known of the other rows is nothing, so that the cost does not grow with their number.
    """
    operation = implementation.operation
    alone = single_row(operation, inputs, i)
    with np.errstate(all="ignore"):
        with account_for("oracle"):
            expected = operation.reference(**alone)
        bound = bounds.bound(operation.name, alone, implementation.precision(dtype))
    expected, bound = (expected[0], bound[0]) if operation.is_gradient else (expected, bound)
    return compare(result[..., i : i + 1, :], expected, bound, largest(dtype))
