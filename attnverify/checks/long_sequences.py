"""
Long sequences: the implementation runs in full, the law answers for sampled rows alone.

A causal row sees a prefix of the keys, so that one query against this prefix is the whole truth
about it; 64 rows against 131072 keys cost a second. Faults that depend on size have no other
witness.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import bounds
from attnverify.backends.loader import Implementation
from attnverify.catalogue.dtypes import largest
from attnverify.inputs.expand import expand
from attnverify.inputs.recipe import Inputs, Recipe
from attnverify.judge.case import checked_output
from attnverify.judge.comparison import Comparison, compare
from attnverify.judge.errors import Disagreement
from attnverify.judge.invoke import call, to_backend_array
from attnverify.timing import account_for

Case = Callable[[Implementation, str], None]

LENGTHS = {
    "quick": ((2, 2051),),
    "default": ((3, 4099), (513, 513)),
    "thorough": ((3, 131072), (4097, 4097), (1025, 2049)),
}


def long_sequence_checks(operation: str, profile: str) -> list[tuple[str, Case]]:
    """
    Named checks of one operation at the profile's lengths; none for operations without rows of
    their own.
    """
    if operation not in SINGLE_ROW_INPUTS:
        return []
    return [
        (f"long: N={N} M={M}", partial(judge_long, long_recipe(operation, N, M)))
        for N, M in LENGTHS[profile]
    ]


def long_recipe(operation: str, N: int, M: int) -> Recipe:
    sizes = {"B": 1, "N": N, "M": M, "E": 8}
    additive = operation == "additive_attention"
    sizes |= {"Q": 4, "K": 5, "A": 6} if additive else {"H": 2, "D": 16}
    learned = operation == "learned_relative_attention"
    options: dict[str, Any] = {"align": "end"} if learned else {}
    sizes |= {"P": max(N, M)} if learned else {}
    return Recipe(operation, sizes, {"family": "needles", "seed": 11}, options=options)


def judge_long(recipe: Recipe, implementation: Implementation, dtype: str) -> None:
    """Hold sampled rows of a long call to the law."""
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
    Hold one row of a result to the law: of the output, or of the query's gradient where the
    operation is a gradient.

    What is known of the other rows is nothing, so that the cost does not grow with their number.
    """
    operation = implementation.operation
    alone = SINGLE_ROW_INPUTS[operation.forward.name](inputs, i)
    if operation.is_gradient:
        alone["d_output"] = inputs["d_output"][..., i : i + 1, :]
    with np.errstate(all="ignore"):
        with account_for("oracle"):
            expected = operation.reference(**alone)
        bound = bounds.bound(operation.name, alone, implementation.precision(dtype))
    expected, bound = (expected[0], bound[0]) if operation.is_gradient else (expected, bound)
    return compare(result[..., i : i + 1, :], expected, bound, largest(dtype))


def sampled_rows(N: int) -> list[int]:
    """The first and last rows, the edges of blocks, and some between."""
    rows = {0, N - 1, N // 2, *(edge for edge in (15, 16, 64, 127, 128, 511, 512) if edge < N)}
    return sorted(rows)


def single_row(inputs: Inputs, i: int) -> Inputs:
    N, masks = (
        inputs["query"].shape[-2],
        {name: inputs[name] for name in ("mask", "visible") if inputs.get(name) is not None},
    )
    rows = {
        name: mask[..., i : i + 1, :] if mask.ndim > 1 and mask.shape[-2] == N else mask
        for name, mask in masks.items()
    }
    return inputs | rows | {"query": inputs["query"][..., i : i + 1, :]}


def single_causal_row(inputs: Inputs, i: int) -> Inputs:
    """Row i of an end-aligned causal attention: one query against the keys up to its own."""
    N, M = inputs["query"].shape[-2], inputs["key"].shape[-2]
    seen = max(M - N + i + 1, 1)
    cut = {"key": inputs["key"][..., :seen, :], "value": inputs["value"][..., :seen, :]}
    if "position" in inputs:
        cut["position"] = inputs["position"][:, M - seen :]
    row = single_row(inputs, i) | cut
    if M - N + i < 0:  # a row before all keys
        return row | {"visible": np.zeros((1, 1), bool)}
    visible = row.get("visible")
    return row if visible is None else row | {"visible": visible[..., :seen]}


def single_learned_relative_row(inputs: Inputs, i: int) -> Inputs:
    """Row i with its tables moved, so that a single query reads what row i reads."""
    N, M, P = inputs["query"].shape[-2], inputs["key"].shape[-2], len(inputs["key_pos_bias"]) // 2
    first = P - i - (M - N if inputs["align"] == "end" else 0)  # the row that key 0 reads
    rows = np.clip(np.arange(-M, M) + first, 0, 2 * P - 1)
    tables = {name: inputs[name][rows] for name in ("key_pos_embeddings", "key_pos_bias")}
    return single_row(inputs, i) | tables | {"align": "start"}


SINGLE_ROW_INPUTS: dict[str, Callable[[Inputs, int], Inputs]] = {
    "additive_attention": single_row,
    "scaled_dot_product_attention": single_row,
    "alibi_attention": single_causal_row,
    "transformer_xl_attention": single_causal_row,
    "learned_relative_attention": single_learned_relative_row,
}
