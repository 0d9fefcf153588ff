"""What a run says at its head and at its end: who was judged on what, and the table of verdicts."""

import json
import os
import platform
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnverify.catalogue.operation import ASPECTS
from attnverify.device_assignment import gpus
from attnverify.report.html import report_page
from attnverify.report.root_causes import SHORT, triage

if TYPE_CHECKING:
    from attnverify.plugin import Verification


def header(run: "Verification") -> list[str]:
    """Backends with their device and library versions, profile and seed."""
    lines = [
        f"attnverify: profile {run.options.profile} ({run.options.cases} cases), seed "
        f"{run.options.seed}, {installed()}"
    ]
    for backend in run.backends:
        state = (
            f"broken ({backend.broken})"
            if backend.broken
            else f"missing ({backend.missing})"
            if backend.missing
            else ""
        )
        found = (
            f"{len(backend.implementations)} implementations on {backend.device}, "
            f"{backend.versions}"
        )
        lines.append(f"  {backend.source}: {state or found}")
        lines += [f"    note: {note}" for note in backend.notes]
    return lines


def installed() -> str:
    found = []
    for package in ("numpy", "hypothesis", "ml_dtypes"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


@dataclass
class Row:
    """One line of the table: an implementation in all dtypes that share its verdicts."""

    operation: str
    label: str
    verdicts: dict[str, str]
    dtypes: list[str] = field(default_factory=list)
    budgets: list[str] = field(default_factory=list)
    cases: int = 0
    strong: int = 0
    checks: int = 0
    unsupported: int = 0
    outside: int = 0

    def __str__(self) -> str:
        words = "".join(f"{self.verdicts.get(aspect, '-'):<13}" for aspect in ASPECTS)
        left_out = (
            f" ({self.unsupported + self.outside})" if self.unsupported + self.outside else ""
        )
        counts = f"{self.cases} {self.strong} {self.checks}{left_out}"
        dtypes, budgets = " ".join(self.dtypes), " ".join(self.budgets)
        return f"{self.label:<31}{dtypes:<18}{words}{counts:<33}{budgets}"

    def add(self, dtype: str, tallies: list[dict[str, Any]]) -> None:
        """One more dtype with its tallies, one a column."""
        slack = tallies[0]["slack"]
        self.dtypes.append(SHORT[dtype])
        self.budgets.append(
            f"{max(tally['budget'] for tally in tallies):.2g}x"
            + (f"(slack {slack:g})" if slack > 1 else "")
        )
        for count in ("cases", "strong", "checks", "unsupported", "outside"):
            setattr(self, count, getattr(self, count) + sum(tally[count] for tally in tallies))


def table(tallies: list[dict[str, Any]]) -> list[str]:
    """
    One line for each operation and implementation; dtypes of the same verdicts share it, the worst
    budget is given for each.

    A budget is the worst error as a share of the derived bound. Cases are outputs held to the law,
    and the strong ones are those that no cheap impostor passes; checks are wrong calls, side
    effects, calls in a row, relations and long sequences. Left out are calls that the
    implementation said it does not support, and cases without finite bounds (`unsupported` and
    `outside` in the JSON report).
    """
    titles = (
        "".join(f"{aspect:<13}" for aspect in ASPECTS)
        + f"{'cases strong checks (left out)':<33}worst budget used"
    )
    lines, previous = [f"{'operation':<31}{'implementation':<31}{'dtypes':<18}{titles}"], ""
    for row in grouped(tallies):
        lines.append(f"{row.operation if row.operation != previous else '':<31}{row}")
        previous = row.operation
    return [*lines, "", closing(tallies)]


def grouped(tallies: list[dict[str, Any]]) -> list[Row]:
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for tally in tallies:
        label = f"{tally['backend']}:{tally['how']}" if tally["how"] else tally["backend"]
        cells[tally["operation"], label, tally["dtype"]].append(tally)
    rows: dict[tuple[Any, ...], Row] = {}
    for (operation, label, dtype), aspects in sorted(
        cells.items(),
        key=lambda cell: (order(cell[0][0]), cell[0][1], list(SHORT).index(cell[0][2])),
    ):
        verdicts = {
            tally["aspect"]: KNOWN.get(tally["kind"], WORDS[tally["verdict"]]) for tally in aspects
        }
        rows.setdefault(
            (operation, label, *sorted(verdicts.items())), Row(operation, label, verdicts)
        ).add(dtype, aspects)
    return list(rows.values())


WORDS = {
    "passed": "passed",
    "failed": "FAILED",
    "known failure": "known",
    "unsupported": "unsupported",
}
KNOWN = {"limitation": "limitation", "nonconformance": "nonconform"}
"""Known failures whose kind is told; the others are *known*."""


def order(operation: str) -> int:
    from attnverify.catalogue.operation import CATALOGUE

    return list(CATALOGUE).index(operation)


def closing(tallies: list[dict[str, Any]]) -> str:
    """
    ``412 cells: 400 passed, 2 failed, 8 known failure (3 limitation), 2 unsupported; 51234 cases,
    49876 strong; 9120 checks``
    """
    count = {word: sum(tally["verdict"] == word for tally in tallies) for word in WORDS}
    kinds = ", ".join(
        f"{number} {kind}" for kind, number in known_kinds(tallies).items() if kind in KNOWN
    )
    words = ", ".join(
        f"{number} {word}" + (f" ({kinds})" if kinds and word == "known failure" else "")
        for word, number in count.items()
        if number
    )
    cases, strong, checks = (
        sum(tally[key] for tally in tallies) for key in ("cases", "strong", "checks")
    )
    return (
        f"{len(tallies)} cells: {words or 'nothing was judged'}; {cases} cases, {strong} "
        f"strong; {checks} checks"
    )


def known_kinds(tallies: list[dict[str, Any]]) -> dict[str, int]:
    """The known failures by their kind; "" for those whose line says none."""
    kinds = [tally["kind"] for tally in tallies if tally["verdict"] == "known failure"]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def as_json(run: "Verification", tallies: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole run for a machine: options, backends, every tally."""
    backends = [
        {
            key: getattr(backend, key)
            for key in ("name", "source", "broken", "missing", "notes", "versions", "device")
        }
        for backend in run.backends
    ]
    options = {"profile": run.options.profile, "seed": run.options.seed, "cases": run.options.cases}
    found = {
        "known_failures": known_kinds(tallies),
        "root_causes": [cause.as_dict() for cause in triage(tallies)],
    }
    about = {
        "options": options,
        "failures": run.options.failures,
        "installed": installed(),
        "environment": environment(),
    }
    return about | {"backends": backends, "tallies": tallies, **found}


def json_text(report: dict[str, Any]) -> str:
    """The report as JSON for people too: a row of numbers or words is one line."""
    return (
        ROW.sub(
            lambda row: f"[{re.sub(chr(10) + ' +', ' ', row[1])}]", json.dumps(report, indent=1)
        )
        + "\n"
    )


ROW = re.compile(r"\[\n +([^\[\]{}]*?)\n +\]")
"""A list without lists in it; a line's end stands in no word of JSON."""


REPORTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "--report": report_page,
    "--report-json": json_text,
}
"""What is written for each option that asks for a report."""


def write_reports(report: dict[str, Any], paths: dict[str, str | None]) -> None:
    """Write the reports that were asked for, each to the path of its option."""
    for option, path in paths.items():
        if path:
            Path(path).write_text(REPORTS[option](report), encoding="utf-8", errors="replace")


def environment() -> dict[str, str]:
    """The machine on which the report is made."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "cores": str(cores),
    }
    return found | ({"devices": ", ".join(gpus())} if gpus() else {})


def matrix(tallies: list[dict[str, Any]]) -> list[str]:
    """
    The README's matrix, in Markdown: operations by implementations, ``20/20 0.98x`` for columns
    passed / judged and the worst budget.
    """
    cells: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for tally in tallies:
        cells[tally["operation"], tally["backend"]].append(tally)
    backends = sorted({backend for _, backend in cells})
    lines = [f"| operation | {' | '.join(backends)} |", "|---" * (len(backends) + 1) + "|"]
    for operation in sorted({operation for operation, _ in cells}, key=order):
        lines.append(
            f"| `{operation}` | "
            f"{' | '.join(entry(cells.get((operation, backend), [])) for backend in backends)} |"
        )
    return lines


def entry(tallies: list[dict[str, Any]]) -> str:
    """
    One entry of the matrix; the implementations that a backend has beside the plain one are named.
    """
    if not tallies:
        return "-"
    judged = [tally for tally in tallies if tally["verdict"] != "unsupported"]
    passed = sum(tally["verdict"] == "passed" for tally in judged)
    budget = max((tally["budget"] for tally in judged), default=0.0)
    others = sorted({tally["how"] for tally in tallies} - {""})
    return f"{passed}/{len(judged)} {budget:.2g}x" + (
        f" (also {', '.join(others)})" if others else ""
    )
