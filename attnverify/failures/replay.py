"""
Judging a recorded failure again.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.pytrees import leaves
from attnverify.checks.call_sequences import passes_when_reloaded
from attnverify.checks.registry import find_check
from attnverify.diagnosis.call_budget import OF_A_CAUSE, CallBudget, price_of
from attnverify.diagnosis.cause import Cause
from attnverify.diagnosis.diagnose import choose_of_other_kinds, diagnose
from attnverify.diagnosis.narrow_partials import find_narrow_partials
from attnverify.failures.known_failures import (
    KnownFailure,
    known_failures_file,
    read_known_failures,
)
from attnverify.failures.record import FailureRecord
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.recipe import Inputs
from attnverify.inputs.sampling import FROM_SOME, draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge
from attnverify.judge.side_effects import judge_side_effects


def cause_again(failure: FailureRecord, implementation: Implementation, kind: str) -> Cause | None:
    """
    Find the cause as the run told it: by the cases that it began with and by those that it drew,
    which fail in this way, in another, or pass, beside the one that is recorded. What the lines
    beside the backend's file know of is left out, as the run leaves it out.
    """
    if passes_when_reloaded(implementation, failure.case):
        return None  # what hangs on earlier calls is told as that
    if narrow := find_narrow_partials(implementation, failure.case):
        return narrow
    drawn = {"hidden NaN": "nan", "isolation": FROM_SOME}.get(failure.aspect, "any")
    fixed = fixed_cases(failure.operation) if drawn == "any" else ()
    draws = failure.draws or FIRST_DRAWS
    failing, passing = {kind: list[Case]()}, list[Case]()
    known = known_otherwise(failure, implementation)
    for recipe in (*fixed, *draw_recipes(failure.operation, drawn, draws["cases"], draws["seed"])):
        case = case_of(recipe, failure.dtype)
        try:
            if judge(implementation, case).judged:
                passing.append(case)
        except Disagreement as error:
            if not any(line.covers(case) for line in known):
                failing.setdefault(error.kind, []).append(case)
        except Unsupported:
            continue
    judged = frozenset((failure.case, *passing, *chain(*failing.values())))  # as in the run
    return diagnose(
        implementation,
        [*failing[kind], failure.case],
        choose_of_other_kinds(failing, kind),
        passing=passing,
        budget=CallBudget(*OF_A_CAUSE, price_of(implementation), judged),
    )


def known_otherwise(failure: FailureRecord, implementation: Implementation) -> list[KnownFailure]:
    """
    List the known failures beside the backend's file that speak of the cell of a failure and do not
    cover the failure itself.
    """
    source, operation = implementation.backend.source, implementation.operation
    path = known_failures_file(source)
    function = implementation.name.replace(operation.name, operation.forward.name)
    names = {implementation.name, function}  # a gradient is a column of its function
    try:
        lines = read_known_failures(path, source) if path else []
    except (OSError, ValueError):  # a run says what is wrong with the file
        return []
    return [
        line
        for line in lines
        if any(line.speaks_of(source, name, failure.dtype, failure.aspect) for name in names)
        and not line.covers(failure.case)
    ]


FIRST_DRAWS = {"cases": 20, "seed": 0}
"""What the shortest run draws, for a record that does not say what its own did."""


SMALL = 48
"""So many numbers at most are printed: what one can work out by hand."""


def describe_small_inputs(inputs: Inputs) -> str:
    """Describe a line for each input with its numbers, where all of them are few; else nothing."""
    size = sum(np.size(leaf) for leaf in leaves(inputs) if isinstance(leaf, ndarray))
    if not 0 < size <= SMALL:
        return ""
    return "".join(f"\n    {name} = {describe_literal(x)}" for name, x in inputs.items())


def describe_literal(x: Any) -> str:
    """Arrays as nested lists, with the digits that tell float32 numbers apart."""
    if isinstance(x, ndarray):
        return describe_literal(x.tolist())
    if isinstance(x, Mapping):
        return "{" + ", ".join(f"{key}: {describe_literal(part)}" for key, part in x.items()) + "}"
    if isinstance(x, (list, tuple)):
        return "[" + ", ".join(map(describe_literal, x)) + "]"
    return f"{x:.9g}" if isinstance(x, float) else str(x)


def replay(failure: FailureRecord, implementation: Implementation) -> float:
    """
    Judge what was recorded once more; the share of the bound. Raises Disagreement or Unsupported.
    """
    if failure.check:
        return replay_check(failure, failure.check, implementation)
    if failure.aspect == "side effects":
        judge_side_effects(implementation, failure.case)
        return 0.0
    try:
        return judge(implementation, failure.case).budget
    except Disagreement as error:
        cause = cause_again(failure, implementation, error.kind)
        cause = cause and cause.beside(failure.case)
        raise telling(error, cause, describe_small_inputs(failure.case.inputs)) from error


def replay_check(
    failure: FailureRecord, named: dict[str, Any], implementation: Implementation
) -> float:
    """Run a recorded check once more; its share of the bound counts as 0."""
    check = find_check(failure.operation, failure.aspect, named)
    if check is None:
        raise ValueError(
            f"record: wanted a check of {failure.operation}, got {named['name']!r}, "
            "which is none any more"
        )
    check(implementation, failure.dtype)
    return 0.0


def telling(error: Disagreement, cause: Cause | None, inputs: str = "") -> Disagreement:
    """Return the disagreement with its inputs and its cause."""
    words = f"{error}{inputs}" + (f"\n  cause: {cause}" if cause else "")
    return Disagreement(words, error.kind, error.budget, error.comparison, error.path)
