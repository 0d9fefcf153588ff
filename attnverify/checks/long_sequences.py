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
from attnverify.backends.loader import Implementation
from attnverify.catalogue.dtypes import largest
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Inputs, Recipe
from attnverify.judge.comparison import Comparison, compare
from attnverify.judge.errors import Disagreement
from attnverify.judge.invoke import call, to_backend_array
from attnverify.judge.judging import checked_output
from attnverify.timing import account_for

Case = Callable[[Implementation, str], None]

LENGTHS: dict[str, tuple[tuple[int, int], ...]] = {
    "quick": (),
    "default": ((3, 4099), (513, 513)),
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


def has_independent_rows(operation: Operation) -> bool:
    """Tell whether a row of its output is the output of its query alone."""
    return operation.is_attention and not operation.is_gradient


def long_recipe(operation: str, N: int, M: int) -> Recipe:
    sizes = {"B": 1, "H": 2, "N": N, "M": M, "D": 16, "E": 8, "Q": 4, "K": 5, "A": 6}
    return fixed_recipe(CATALOGUE[operation], sizes | {"P": max(N, M)}, "needles", seed=11)


def judge_long(recipe: Recipe, implementation: Implementation, dtype: str) -> None:
    """Hold sampled rows of a long call to the specification."""
    inputs = expand(recipe, dtype)
    given = {name: to_backend_array(implementation, value, dtype) for name, value in inputs.items()}
    output = call(implementation, given)
    N, E = recipe.sizes["N"], recipe.sizes["E"]
    result = checked_output(
        output, np.zeros((*inputs["query"].shape[:-1], E)), dtype, implementation, "output"
    )
    for i in sampled_rows(N):
        comparison = judge_row(implementation, inputs, result, i, dtype)
        if not comparison.passed:
            raise Disagreement(
                f"row {i} of {N}: {comparison}\n  recipe: {recipe}",
                comparison=comparison,
                path=f"row {i} of {N}",
            )


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
    if operation.is_gradient:
        alone["d_output"] = inputs["d_output"][..., i : i + 1, :]
    with np.errstate(all="ignore"):
        with account_for("oracle"):
            expected = operation.reference(**alone)
        bound = bounds.bound(operation.name, alone, implementation.precision(dtype))
    expected, bound = (expected[0], bound[0]) if operation.is_gradient else (expected, bound)
    return compare(result[..., i : i + 1, :], expected, bound, largest(dtype))


def sampled_rows(N: int) -> list[int]:
    """Choose the first and last rows, the edges of blocks, and some between."""
    rows = {0, N - 1, N // 2, *(edge for edge in (15, 16, 64, 127, 128, 511, 512) if edge < N)}
    return sorted(rows)


def single_row(operation: Operation, inputs: Inputs, i: int) -> Inputs:
    """Cut out the inputs of which row i of the output is the only row."""
    if operation.traits.causal:
        return _single_causal_row(inputs, i)
    if "key_pos_bias" in inputs:
        return _single_row_of_tables(inputs, i)
    return _single_query(inputs, i)


def _single_query(inputs: Inputs, i: int) -> Inputs:
    N, masks = (
        inputs["query"].shape[-2],
        {name: inputs[name] for name in ("mask", "visible") if inputs.get(name) is not None},
    )
    rows = {
        name: mask[..., i : i + 1, :] if mask.ndim > 1 and mask.shape[-2] == N else mask
        for name, mask in masks.items()
    }
    return inputs | rows | {"query": inputs["query"][..., i : i + 1, :]}


def _single_causal_row(inputs: Inputs, i: int) -> Inputs:
    """Row i of an end-aligned causal attention: one query against the keys up to its own."""
    N, M = inputs["query"].shape[-2], inputs["key"].shape[-2]
    seen = max(M - N + i + 1, 1)
    cut = {"key": inputs["key"][..., :seen, :], "value": inputs["value"][..., :seen, :]}
    if "position" in inputs:
        cut["position"] = inputs["position"][:, M - seen :]
    row = _single_query(inputs, i) | cut
    if M - N + i < 0:  # a row before all keys
        return row | {"visible": np.zeros((1, 1), bool)}
    visible = row.get("visible")
    return row if visible is None else row | {"visible": visible[..., :seen]}


def _single_row_of_tables(inputs: Inputs, i: int) -> Inputs:
    """Row i with its tables moved, so that a single query reads what row i reads."""
    N, M, P = inputs["query"].shape[-2], inputs["key"].shape[-2], len(inputs["key_pos_bias"]) // 2
    first = P - i - (M - N if inputs["align"] == "end" else 0)  # the row that key 0 reads
    rows = np.clip(np.arange(-M, M) + first, 0, 2 * P - 1)
    tables = {name: inputs[name][rows] for name in ("key_pos_embeddings", "key_pos_bias")}
    return _single_query(inputs, i) | tables | {"align": "start"}
