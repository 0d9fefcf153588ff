"""
Two reports beside each other: what fails now and did not, what no longer fails, and what moved.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from attnverify.judge.comparison import format_budget
from attnverify.report.html.document import Section, render, render_page
from attnverify.report.html.origin import commits_of_backends, describe_run

Report = dict[str, Any]
Tally = dict[str, Any]
Cell = tuple[str, str, str, str]

SMALL_BUDGET = 0.01
"""A share of the bound below which a budget is no matter whatever its ratio to another is."""

SHORT = 0.5
"""Seconds in the backend below which a cell's time is mostly the machine's."""


@dataclass(frozen=True)
class Change:
    """One cell that is not what it was: its name, and what it was and is, as words."""

    cell: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.cell}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class Comparison:
    """
    What changed between two reports.

    other    verdicts that changed, neither to *failed* nor from it
    added    cells that the old report lacks and removed those that the new one lacks, as changes
    unlike   what the two runs were asked for differently, which may explain the rest
    runs     when each of them was, and of what commits
    """

    new_failures: list[Change] = field(default_factory=list)
    gone_failures: list[Change] = field(default_factory=list)
    other: list[Change] = field(default_factory=list)
    budgets: list[Change] = field(default_factory=list)
    times: list[Change] = field(default_factory=list)
    added: list[Change] = field(default_factory=list)
    removed: list[Change] = field(default_factory=list)
    unlike: list[Change] = field(default_factory=list)
    runs: tuple[str, ...] = ()


SECTIONS = {
    "new_failures": "New failures",
    "gone_failures": "Gone failures",
    "other": "Other verdicts that changed",
    "budgets": "Budgets that moved",
    "times": "Times that moved",
    "added": "Cells of the new report alone",
    "removed": "Cells of the old report alone",
    "unlike": "The runs differ in",
}


def compare_reports(old: Report, new: Report, factor: float = 1.5) -> Comparison:
    """
    Compare two reports cell by cell. A budget or a time has moved where one is more than `factor`
    times the other.
    """
    if not factor > 1:
        raise ValueError(f"factor: wanted a number above 1, got {factor}")
    before, after = _cells(old), _cells(new)
    runs = (f"Old: {describe_run(old)}", f"New: {describe_run(new)}")
    found = Comparison(unlike=_differences(old, new), runs=runs)
    for cell in sorted(before.keys() | after.keys()):
        _compare_cell(found, ", ".join(cell), before.get(cell), after.get(cell), factor)
    return found


def _cells(report: Report) -> dict[Cell, Tally]:
    """Return the tallies by what they are of; the last word wins where a name stands twice."""
    return {
        (_implementation(tally), tally["backend"], tally["dtype"], tally["aspect"]): tally
        for tally in report["tallies"]
    }


def _implementation(tally: Tally) -> str:
    own = tally["implementation"]
    return own if own.startswith(tally["operation"]) else f"{tally['operation']} ({own})"


def _compare_cell(
    found: Comparison, name: str, old: Tally | None, new: Tally | None, factor: float
) -> None:
    if old is None or new is None:
        only = old or new
        assert only is not None
        change = Change(name, _verdict(old), _verdict(new))
        kept = found.removed if new is None else found.added
        (found.new_failures if new and new["verdict"] == "failed" else kept).append(change)
        return
    if old["verdict"] != new["verdict"]:
        kept = found.other
        if new["verdict"] == "failed":
            kept = found.new_failures
        elif old["verdict"] == "failed":
            kept = found.gone_failures
        kept.append(Change(name, _verdict(old), _verdict(new)))
    if moved(old["budget"], new["budget"], factor, SMALL_BUDGET):
        budgets = (format_budget(tally["budget"]) for tally in (old, new))
        found.budgets.append(Change(name, *budgets))
    spent = [tally.get("seconds", {}).get("backend", 0.0) for tally in (old, new)]
    if moved(spent[0], spent[1], factor, SHORT):
        found.times.append(Change(name, f"{spent[0]:.2g} s", f"{spent[1]:.2g} s"))


def _verdict(tally: Tally | None) -> str:
    if tally is None:
        return "not there"
    causes = (found["cause"] for found in tally["findings"] if found.get("cause"))
    words = next((cause["words"] for cause in causes if cause["words"]), "")
    words = words or tally["reason"].partition("\n")[0]
    return tally["verdict"] + (f" ({words})" if words else "")


def moved(old: float, new: float, factor: float, least: float) -> bool:
    """Whether two figures differ by more than a factor, and the larger one is worth a line."""
    if math.isnan(old) or math.isnan(new):
        return math.isnan(old) != math.isnan(new)
    low, high = sorted((old, new))
    return high > least and high > factor * max(low, least / factor)


def _differences(old: Report, new: Report) -> list[Change]:
    """What the runs were asked for, and on what they ran, where that is not the same."""
    about = [
        report.get("options", {})
        | report.get("environment", {})
        | {key: report[key] for key in ("attnverify", "installed", "commit") if key in report}
        | commits_of_backends(report)
        for report in (old, new)
    ]
    names = {name: None for each in about for name in each}
    return [
        Change(name, str(about[0].get(name, "not said")), str(about[1].get(name, "not said")))
        for name in names
        if about[0].get(name) != about[1].get(name)
    ]


def describe_comparison(found: Comparison) -> Iterator[str]:
    """Write the comparison for a terminal: one line of counts, then each section that has lines."""
    yield outcome(found)
    yield from found.runs
    for name, title in SECTIONS.items():
        if changes := getattr(found, name):
            yield ""
            yield f"{title} ({len(changes)})"
            yield from (f"  {change}" for change in changes)


def outcome(found: Comparison) -> str:
    """Count what matters most in one line."""
    counts = {
        "new failure": found.new_failures,
        "gone failure": found.gone_failures,
        "budget that moved": found.budgets,
        "time that moved": found.times,
    }
    return ", ".join(
        f"{len(changes)} {words if len(changes) == 1 else _plural(words)}"
        for words, changes in counts.items()
    )


def _plural(words: str) -> str:
    first, _, rest = words.partition(" that")
    return f"{first}s{' that' * bool(rest)}{rest}"


def comparison_page(found: Comparison) -> str:
    """Render the comparison as a page that needs nothing beside it."""
    sections = [
        Section(name.replace("_", "-"), title, render("comparison.html", name=name, changes=rows))
        for name, title in SECTIONS.items()
        if (rows := getattr(found, name))
    ]
    lead = render(
        "comparison_lead.html", runs=found.runs, outcome=outcome(found), any=bool(sections)
    )
    return render_page("Two verifications compared", lead, sections)
