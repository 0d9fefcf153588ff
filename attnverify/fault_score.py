"""
The kill score: how soon the suite notices each fault, and whether it leaves the controls alone.

An implementation meets the very sequence of a run (probes, draws, the hunt, checks, side effects,
refusals, hidden NaN), through the same judge and the same checks, until the first of them fails.
Nothing is shrunk and nothing is recorded.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import pytest

from attnverify.backends.array_libraries import array_library
from attnverify.backends.call_adapter import adapt_signature
from attnverify.backends.loader import Backend, Implementation
from attnverify.catalogue.traits import ASPECTS
from attnverify.checks.registry import checks, recipes_called_twice
from attnverify.faults.registry import CONTROLS, FAULT_KINDS, Fault
from attnverify.inputs.fixed_cases import fixed_cases
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
    Probes, draws, more draws in place of weak ones, and what Hypothesis tries: as
    :func:`attnverify.verdicts.columns.judge_each` goes through them.
    """
    operation, held = implementation.operation.name, Counter[str]()

    def once(recipe: Any) -> str:
        return objection(judge, implementation, case_of(recipe, dtype), held=held)

    for recipe in (
        *(fixed_cases(operation) if kind == "any" else ()),
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


def dtypes_of(fault: Fault) -> tuple[str, ...]:
    """Choose the dtypes in which a fault must be noticed."""
    return fault.operation.dtypes if fault.operation.dtypes == ("bool",) else fault.wrong_in


def score_fault(fault: Fault, dtype: str, options: Options) -> dict[str, Any]:
    """
    Write one entry of the score: what was judged, what was wanted, where and after how many cases
    it was noticed, and in which words.
    """
    found = first_failure(implementation_of(fault), dtype, options)
    named = {
        "operation": fault.operation.name,
        "fault": fault.name,
        "kind": fault.kind,
        "dtype": dtype,
        "control": fault.name in CONTROLS,
    }
    wanted = "killed" if fault.name not in CONTROLS and dtype in dtypes_of(fault) else "accepted"
    return named | {"wanted": wanted, "killed": found.killed} | asdict(found)


def table(entries: list[dict[str, Any]]) -> list[str]:
    """
    Per kind the faults killed and the median of the cases that took; then the hardest faults, and
    the controls.
    """
    wanted = [entry for entry in entries if entry["wanted"] == "killed"]
    lines = [f"{'kind':<14}{'faults':>7}{'x dtype':>9}{'killed':>8}{'median cases':>14}"]
    for kind in [
        *(kind for kind in FAULT_KINDS if any(entry["kind"] == kind for entry in wanted)),
        "all",
    ]:
        lines.append(
            format_kind(kind, [entry for entry in wanted if kind in (entry["kind"], "all")])
        )
    hard = hardest(wanted)
    lines += (
        ["", "the hardest: " + ", ".join(f"{name} ({cases} cases)" for name, cases in hard)]
        if hard
        else []
    )
    others = [entry for entry in entries if entry["wanted"] == "accepted"]
    controls = {entry["fault"] for entry in entries if entry["control"]}
    accused = [
        f"{entry['fault']} in {entry['dtype']} ({entry['column']})"
        for entry in others
        if entry["killed"]
    ]
    lines.append(f"controls: {len(controls)}, accused {', '.join(accused) or 'none'}")
    return lines


def format_kind(kind: str, entries: list[dict[str, Any]]) -> str:
    killed = [entry["cases"] for entry in entries if entry["killed"]]
    faults = len({entry["fault"] for entry in entries})
    middle = median(killed) if killed else "-"
    return f"{kind:<14}{faults:>7}{len(entries):>9}{len(killed):>8}{middle:>14}"


def hardest(entries: list[dict[str, Any]], count: int = 10) -> list[tuple[str, int]]:
    """
    Select the faults that took the most cases, each in its worst dtype; what was not noticed at all
    comes first.
    """
    worst: dict[str, tuple[bool, int]] = {}
    for entry in entries:
        worst[entry["fault"]] = max(
            worst.get(entry["fault"], (False, 0)), (not entry["killed"], entry["cases"])
        )
    ranked = sorted(worst, key=lambda name: worst[name], reverse=True)
    return [(name, worst[name][1]) for name in ranked[:count]]


class Scores:
    """
    Takes the entries from the reports of ``pytest -m faults``, under xdist those of all workers,
    and closes with the table.
    """

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.entries += [
                cast(dict[str, Any], value)
                for name, value in report.user_properties
                if name == "score"
            ]

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if not self.entries:
            return
        terminalreporter.section("kill score")
        for line in table(self.entries):
            terminalreporter.write_line(line)
        if path := config.getoption("--attn-score-json"):
            Path(path).write_text(json.dumps(self.entries, indent=1) + "\n")
