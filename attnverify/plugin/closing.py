"""How a run closes: of each root cause one cell in full, the table, and what to do next."""

import sys
from collections import defaultdict
from collections.abc import Generator, Iterable
from copy import copy
from typing import Any, cast

import pytest

from attnverify.failures.record import describe_damaged_records
from attnverify.report.json_report import as_json, write_reports
from attnverify.report.next_steps import declaration, lines_to_add, next_steps
from attnverify.report.root_causes import (
    SHORT_DTYPES,
    format_root_causes,
    format_weak_cells,
    representative_cells,
    triage,
)
from attnverify.report.table import format_table, header
from attnverify.report.terminal_colours import colourize, fold_lines, terminal_width
from attnverify.session import Verification, unmatched_known_failures
from attnverify.timing import time_summary
from attnverify.verdicts.tally import describe_not_required


def tallies_of(report: pytest.TestReport) -> list[dict[str, Any]]:
    return [
        cast(dict[str, Any], value) for name, value in report.user_properties if name == "tally"
    ]


def folded(report: pytest.TestReport, width: int | None) -> pytest.TestReport:
    """A report of a cell with its words as wide as a terminal; any other as it is."""
    if width is None or not tallies_of(report):
        return report
    shown = copy(report)
    shown.longrepr = "\n".join(fold_lines(report.longreprtext.splitlines(), width))
    return shown


class Collector:
    """Takes the tallies from the reports of one run; under xdist, those of all workers."""

    def __init__(self) -> None:
        self.tallies: list[dict[str, Any]] = []
        self.failed: list[pytest.TestReport] = []
        self.left_out: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.tallies.extend(tallies_of(report))
        if report.when == "setup":
            self.left_out += [str(x) for name, x in report.user_properties if name == "left out"]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: Any, config: pytest.Config
    ) -> Generator[None, Any, Any]:
        """
        Of each root cause pytest shows one cell in full (with -v, every cell); the others are in
        the triage, one line each.
        """
        stats, full = terminalreporter.stats, representative_cells(self.tallies)
        if full and config.getoption("verbose") < 1:
            self.failed = stats.get("failed", [])
            stats["failed"] = [
                folded(report, terminal_width(sys.stdout))
                for report in self.failed
                if all(tally in full for tally in tallies_of(report))
            ]
        return (yield)

    def restore(self, terminalreporter: Any) -> None:
        """Count all the same what was not shown."""
        if self.failed:
            terminalreporter.stats["failed"] = self.failed


def print_summary(
    reporter: Any,
    run: Verification,
    tallies: list[dict[str, Any]],
    reports: dict[str, str | None],
    left_out: list[str],
    limits: list[str],
) -> None:
    """
    Print the last section of a run; the reports that were asked for are written as well. Cells that
    were left out are told, by ``limits`` and in the reports, of a green run too.
    """
    reporter.section("verification")
    width, colour = terminal_width(sys.stdout), reporter.hasmarkup

    def tell(lines: Iterable[str], **markup: bool) -> None:
        for line in fold_lines(lines, width):
            reporter.write_line(colourize(line, colour and not markup), **markup)

    causes = [
        *format_root_causes(triage(tallies)),
        *format_weak_cells(tallies),
        time_summary(tallies),
    ]
    tell([*header(run), ""])
    for line in format_table(tallies, width, colour):
        reporter.write_line(line)
    tell(causes)
    tell(limits, yellow=True)
    tell(describe_unsupported(tallies), yellow=True)
    declared = {backend.name: backend.declared for backend in run.backends}
    need_not = [each for each in tallies if each["verdict"] == "failed" and not run.is_red(each)]
    tell([*lines_to_add(tallies, declared), *describe_not_required(need_not)], yellow=True)
    tell(describe_unmatched(run), yellow=True)
    damaged = describe_damaged_records(run.options.failures)
    tell((f"warning: {words}" for words in damaged), yellow=True)
    report = as_json(run, tallies) | ({"left_out": left_out} if left_out else {})
    for words in write_reports(report, reports):
        tell([words], red=True)
    tell(next_steps(run, tallies, reports["--report"], bool(left_out)))


def describe_unmatched(run: Verification) -> list[str]:
    """Write one line for each known failure that speaks of nothing in this run."""
    return [
        f"{known.source}: speaks of no cell of this run: {known.name} {known.dtype} {known.aspect}"
        for known in unmatched_known_failures(run)
    ]


def describe_unsupported(tallies: list[dict[str, Any]]) -> list[str]:
    """
    Write one line for each reason by which a whole cell was left out, and its dtypes; without what
    a file declares, and what it may.
    """
    found: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for tally in tallies:
        declared = tally["reason"].startswith(("DTYPES", "FEATURES"))
        if tally["verdict"] == "unsupported" and not (declared or declaration(tally["reason"])):
            found[tally["backend"], tally["reason"]][SHORT_DTYPES[tally["dtype"]]] = None
    return [
        f"{backend}: unsupported: {reason} ({', '.join(dtypes)})"
        for (backend, reason), dtypes in found.items()
    ]
