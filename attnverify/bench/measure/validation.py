"""
Correct first, and correct while it was timed.

Before anything is timed a contestant answers the very shape of the case, and its answer is held to
the law: whole where numbers are only moved, else on sampled rows; gradients on all keys and tables
for the last rows of queries. After the rounds the outputs of the timed calls are held to it too, on
rows that nobody knew before.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import bounds
from attnverify.backends.loader import Implementation
from attnverify.bench.measure.cases import Case
from attnverify.bench.measure.contestants import Contestant, given
from attnverify.catalogue.operation import CATALOGUE
from attnverify.checks.long_sequences import (
    has_independent_rows,
    judge_row,
    sampled_rows,
)
from attnverify.inputs.expand import expand
from attnverify.inputs.recipe import Inputs
from attnverify.judge.case import checked_output, compare_outputs
from attnverify.judge.comparison import Comparison
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import call


@dataclass(frozen=True)
class Judgement:
    """
    correct, wrong, unsupported or missing; why; the worst share of the derived bound that was used.
    """

    verdict: str
    reason: str = ""
    budget: float = 0.0


LAST = 8
"""Rows of queries whose gradients are judged before the timing, at the end of the sequence."""

PAIRS = 2**24
"""
Most pairs for which all gradients of a timed call are computed in float64; beyond, the rows of the
query's gradient speak alone.
"""

NORM = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2}
"""
How far a gradient of a timed call may be from the reference in its norm, relatively; its rows are
held to the derived bounds.
"""


def uncached_inputs(case: Case, seed: int) -> Inputs:
    """The inputs of a case, which nobody keeps."""
    return expand.__wrapped__(case.recipe(seed), case.dtype)


def judged(case: Case, contestant: Contestant, implementation: Implementation) -> Judgement:
    """The answer to the case's own shape, before it is timed."""
    inputs = uncached_inputs(case, 1)
    if implementation.operation.is_gradient:
        inputs |= {"d_output": last_rows_alone(inputs["d_output"])}
    try:
        outputs = call(implementation, given(contestant, implementation, inputs, case.dtype))
        return Judgement("correct", budget=check_outputs(case, implementation, inputs, outputs))
    except Unsupported as reason:
        return Judgement("unsupported", str(reason))
    except Disagreement as error:
        return Judgement("wrong", str(error), error.budget)


def last_rows_alone(d_output: ndarray) -> ndarray:
    kept = np.zeros_like(d_output)
    kept[..., -LAST:, :] = d_output[..., -LAST:, :]
    return kept


def check_outputs(
    case: Case, implementation: Implementation, inputs: Inputs, outputs: Any
) -> float:
    """Hold the outputs to the law; the budget that they use."""
    if implementation.operation.is_gradient:
        return last_gradients(case, implementation, inputs, outputs)
    if has_independent_rows(CATALOGUE[case.operation]):
        return rows(case, implementation, inputs, outputs, sampled_rows(inputs["query"].shape[-2]))
    return whole(case, implementation, inputs, outputs)


def rows(
    case: Case, implementation: Implementation, inputs: Inputs, outputs: Any, which: list[int]
) -> float:
    """Rows of the output, or of the query's gradient."""
    like = inputs["query"]
    if implementation.operation.is_gradient:
        outputs, shape = outputs[0], like.shape
    else:
        shape = (*like.shape[:-1], inputs["value"].shape[-1])
    result = checked_output(
        outputs, np.broadcast_to(0.0, shape), case.dtype, implementation, "output"
    )
    return worst(
        (judge_row(implementation, inputs, result, i, case.dtype), f"row {i}") for i in which
    )


def whole(case: Case, implementation: Implementation, inputs: Inputs, outputs: Any) -> float:
    """Every element, where the operation has no rows of its own."""
    operation = implementation.operation
    expected = operation.reference(**inputs)
    bound = (
        None
        if operation.exact
        else bounds.bound(operation.name, inputs, implementation.precision(case.dtype))
    )
    return worst(
        (comparison, path)
        for path, comparison in compare_outputs(
            outputs, expected, bound, case.dtype, implementation
        )
    )


def last_gradients(
    case: Case, implementation: Implementation, inputs: Inputs, outputs: Any
) -> float:
    """
    The gradients of everything by the last rows of queries: of an end-aligned operation they are a
    small one with all the keys.
    """
    operation, N = implementation.operation, inputs["query"].shape[-2]
    first = max(N - LAST, 0)
    few = inputs | {name: inputs[name][..., first:, :] for name in ("query", "d_output")}
    for name in ("mask", "visible"):
        if inputs.get(name) is not None:
            few[name] = inputs[name][..., first:, :]
    with np.errstate(all="ignore"):
        expected = operation.reference(**few)
        bound = bounds.bound(operation.name, few, implementation.precision(case.dtype))
    outputs = (outputs[0][..., first:, :], *outputs[1:])
    return worst(
        (comparison, path)
        for path, comparison in compare_outputs(
            outputs, expected, bound, case.dtype, implementation
        )
    )


def worst(comparisons: Any) -> float:
    """The largest budget of all comparisons; the first that does not pass is a Disagreement."""
    budget = 0.0
    for comparison, path in comparisons:
        refuse(comparison, path)
        budget = max(budget, comparison.budget)
    return budget


def refuse(comparison: Comparison, path: str) -> None:
    if not comparison.passed:
        raise Disagreement(
            f"{path}: {comparison}", budget=comparison.budget, comparison=comparison, path=path
        )


def check_timed(
    case: Case,
    implementation: Implementation,
    inputs: Inputs,
    outputs: Any,
    rng: np.random.Generator,
    gradients: Any,
) -> float:
    """
    The outputs of a timed call on rows drawn now; gradients of keys and tables by their norm.
    Raises Disagreement.
    """
    if not has_independent_rows(CATALOGUE[case.operation]):
        return whole(case, implementation, inputs, outputs)
    N = inputs["query"].shape[-2]
    which = sorted({0, N - 1, *rng.integers(0, N, size=6).tolist()})
    budget = rows(case, implementation, inputs, outputs, which)
    if gradients is not None:
        for index, (output, expected) in enumerate(zip(outputs, gradients, strict=True)):
            check_relative_norm(
                checked_output(output, expected, case.dtype, implementation, f"output[{index}]"),
                expected,
                case.dtype,
                index,
            )
    return budget


def check_relative_norm(actual: ndarray, expected: ndarray, dtype: str, index: int) -> None:
    error = np.linalg.norm(actual - expected) / max(
        float(np.linalg.norm(expected)), np.finfo(float).tiny
    )
    if not error <= NORM[dtype]:
        raise Disagreement(
            f"output[{index}]: its norm is off by {error:.2g}, wanted at most {NORM[dtype]:g}"
        )


def all_gradients(case: Case, inputs: Inputs) -> Any:
    """Every gradient in float64, where that is not too much to ask."""
    pairs = np.prod([case.sizes.get(letter, 1) for letter in "BHNM"])
    return (
        CATALOGUE[case.timed].reference(**inputs)
        if case.mode != "forward" and pairs <= PAIRS
        else None
    )
