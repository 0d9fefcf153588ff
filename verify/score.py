"""
The kill score: how soon the suite notices each fault, and whether it leaves the controls alone.

An implementation meets the very sequence of a run (probes, draws, the hunt, checks, side effects, refusals, hidden NaN), through the
same judge and the same checks, until the first of them fails. Nothing is shrunk and nothing is recorded.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from verify.arrays import adapter
from verify.backends import Backend, Implementation
from verify.catalogue import ASPECTS
from verify.cells import Options, aspects
from verify.checks import checks
from verify.draws import draw, draw_few, hunt
from verify.faults import Fault
from verify.judge import Disagreement, Unsupported, judge, judge_side_effects
from verify.probes import probes


@dataclass(frozen=True)
class Detection:
    """Where an implementation failed first: the column, how many cases that took, and what was said. No column: it passed them all."""

    column: str
    cases: int
    words: str

    @property
    def killed(self) -> bool:
        return self.column != ""


def implementation_of(fault: Fault) -> Implementation:
    """The fault as the one implementation of a backend, with nothing remembered."""
    backend = Backend(fault.name, fault.name, by_name=True, library=adapter("numpy"), precision=fault.precision)
    how = fault.name[len(fault.operation.name) + 1 :]
    backend.implementations = [Implementation(backend, fault.operation, how, with_dtype(fault))]
    return backend.implementations[0]


def with_dtype(fault: Fault) -> Any:
    """A fresh function that says whether it takes ``dtype``, as :func:`verify.calls.adapt` would."""
    from verify.calls import adapt

    return adapt(fault.fresh(), fault.operation)


def first_failure(implementation: Implementation, dtype: str, options: Options) -> Detection:
    """Judge one implementation, column after column, until something is wrong."""
    gradient = implementation if implementation.operation.is_gradient else None
    asked, cases = aspects(implementation, gradient), 0
    for column in (aspect for aspect in ASPECTS if aspect in asked):
        for words in column_of(implementation, dtype, column, options):
            cases += 1
            if words:
                return Detection(column, cases, words)
    return Detection("", cases, "")


def column_of(implementation: Implementation, dtype: str, column: str, options: Options) -> Iterator[str]:
    """One entry for each case of a column: what is wrong, or ""."""
    operation = implementation.operation.name
    if column in ("values", "gradients"):
        yield from each_recipe(implementation, dtype, "any", options.cases, options)
    if column == "hidden NaN":
        yield from each_recipe(implementation, dtype, "nan", max(10, options.cases // 4), options)
    if column == "side effects":
        for recipe in (*probes(operation), *draw_few(operation, options.profile, options.seed)):
            yield said(judge_side_effects, implementation, recipe, dtype)
    for check in checks(operation, column, **options.draws).values():
        yield said(check, implementation, dtype)


def each_recipe(implementation: Implementation, dtype: str, kind: str, cases: int, options: Options) -> Iterator[str]:
    """Probes, draws, more draws in place of weak ones, and what Hypothesis tries: as :func:`verify.cells.judge_each` goes through them."""
    operation, held = implementation.operation.name, Counter[str]()

    def once(recipe: Any) -> str:
        return said(judge, implementation, recipe, dtype, held=held)

    for recipe in (*(probes(operation) if kind == "any" else ()), *draw(operation, kind, cases, options.seed)):
        yield once(recipe)
    for recipe in draw(operation, kind, 4 * cases, options.seed)[cases:]:
        if held["strong"] >= cases or not held["judged"]:
            break
        yield once(recipe)
    tried: list[str] = []
    hunt(operation, kind, lambda recipe: bool(tried.append(once(recipe))), max(2, options.cases // 10), options.seed)
    yield from tried


def said(judge_it: Any, *case: Any, held: Counter[str] | None = None) -> str:
    """What the judge has against a case, or ""."""
    try:
        verdict = judge_it(*case)
    except Unsupported:
        return ""
    except Disagreement as error:
        return str(error) or "wrong"
    if held is not None:
        held["judged"] += verdict.judged
        held["strong"] += verdict.strong
    return ""


def dtypes_of(fault: Fault) -> tuple[str, ...]:
    """The dtypes in which a fault must be noticed."""
    return ("bool",) if fault.operation.dtypes == ("bool",) else fault.wrong_in


def scored(fault: Fault, dtype: str, options: Options) -> dict[str, Any]:
    """One entry of the score."""
    found = first_failure(implementation_of(fault), dtype, options)
    named = {"operation": fault.operation.name, "fault": fault.name, "kind": fault.kind, "dtype": dtype, "killed": found.killed}
    return named | asdict(found)
