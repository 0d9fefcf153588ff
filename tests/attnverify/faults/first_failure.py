"""
Where the suite notices a wrong implementation first.

It meets the very sequence of a run (probes, draws, the hunt, checks, side effects,
refusals, hidden NaN), through the same judge and the same checks, until the first of them fails.
Nothing is shrunk and nothing is recorded.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attnverify.backends.array_libraries import array_library
from attnverify.backends.calls.call_adapter import adapt_signature
from attnverify.backends.implementation import Backend, Implementation
from attnverify.catalogue.traits import ASPECTS
from attnverify.checks.registry import checks, recipes_called_twice
from attnverify.faults.registry import Fault
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.real.required_kinds import required_cases
from attnverify.inputs.sampling import (
    FROM_SOME,
    count_draws,
    count_hidden,
    draw_recipes,
    hypothesis_examples,
)
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge
from attnverify.judge.side_effects import judge_side_effects
from attnverify.verdicts.cell import applicable_aspects
from attnverify.verdicts.shown import real_recipes
from attnverify.verdicts.tally import Options


@dataclass(frozen=True)
class FirstFailure:
    """
    Where an implementation failed first: the column, how many cases that took, and what was said.
    No column: it passed them all.
    """

    column: str
    cases: int
    words: str

    @property
    def killed(self) -> bool:
        return self.column != ""


def implementation_of(fault: Fault) -> Implementation:
    """Wrap the fault as the one implementation of a backend, with nothing remembered."""
    backend = Backend(
        fault.name,
        fault.name,
        by_name=True,
        library=array_library("numpy"),
        precision=fault.precision,
    )
    how = fault.name[len(fault.operation.name) + 1 :]
    backend.implementations = [
        Implementation(
            backend, fault.operation, how, adapt_signature(fault.fresh(), fault.operation)
        )
    ]
    return backend.implementations[0]


def first_failure(implementation: Implementation, dtype: str, options: Options) -> FirstFailure:
    """Judge one implementation, column after column, until something is wrong."""
    gradient = implementation if implementation.operation.is_gradient else None
    asked, cases = applicable_aspects(implementation, gradient), 0
    for column in (aspect for aspect in ASPECTS if aspect in asked):
        for words in cases_of_aspect(implementation, dtype, column, options):
            cases += 1
            if words:
                return FirstFailure(column, cases, words)
    return FirstFailure("", cases, "")


def cases_of_aspect(
    implementation: Implementation, dtype: str, column: str, options: Options
) -> Iterator[str]:
    """Yield one entry for each case of a column: what is wrong, or ""."""
    operation = implementation.operation.name
    if column in ("values", "gradients"):
        cases = count_draws(operation, options.cases)
        yield from judged_recipes(implementation, dtype, "any", cases, options)
    if kind := {"hidden NaN": "nan", "isolation": FROM_SOME}.get(column):
        cases = count_hidden(kind, options.cases)
        yield from judged_recipes(implementation, dtype, kind, cases, options)
    if column == "side effects":
        for recipe in recipes_called_twice(operation, **options.draws):
            yield objection(judge_side_effects, implementation, case_of(recipe, dtype))
    for check in checks(operation, column, **options.draws).values():
        yield objection(check, implementation, dtype)


def judged_recipes(
    implementation: Implementation, dtype: str, kind: str, cases: int, options: Options
) -> Iterator[str]:
    """
    Probes, draws, more draws in place of weak ones, and what Hypothesis tries, in the order of a
    run.
    """
    operation, held = implementation.operation.name, Counter[str]()

    def once(recipe: Any) -> str:
        return objection(judge, implementation, case_of(recipe, dtype), held=held)

    for recipe in (
        *((*fixed_cases(operation), *required_cases(operation)) if kind == "any" else ()),
        *draw_recipes(operation, kind, cases, options.seed),
    ):
        yield once(recipe)
    for recipe in draw_recipes(operation, kind, 4 * cases, options.seed)[cases:]:
        if held["strong"] >= cases or not held["judged"]:
            break
        yield once(recipe)
    yield from map(
        once, hypothesis_examples(operation, kind, max(2, options.cases // 10), options.seed)
    )
    if kind == "any" and held["judged"]:
        yield from map(once, real_recipes(implementation, dtype, options))


def objection(judge_it: Any, *case: Any, held: Counter[str] | None = None) -> str:
    """Say what the judge has against a case, or ""."""
    try:
        verdict = judge_it(*case)
    except Unsupported:
        return ""
    except Disagreement as error:
        return str(error) or "wrong"
    if held is not None:
        held["judged"] += verdict.judged
        held["strong"] += verdict.discriminating
    return ""
