"""How a run closes: of each root cause one cell in full, the table, and what to do next."""

import sys
from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Any, cast

import pytest

from attnverify.failures.record import describe_damaged_records
from attnverify.report.json_report import as_json, write_reports
from attnverify.report.next_steps import lines_to_add, next_steps
from attnverify.report.root_causes import (
    format_root_causes,
    format_weak_cells,
    representative_cells,
    triage,
)
from attnverify.report.table import format_table, header
from attnverify.report.terminal_colours import colourize, terminal_width
from attnverify.session import Verification, unmatched_known_failures
from attnverify.timing import time_summary


def tallies_of(report: pytest.TestReport) -> list[dict[str, Any]]:
    return [
        cast(dict[str, Any], value) for name, value in report.user_properties if name == "tally"
    ]


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
                report
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
    width, colour = terminal_width(sys.stdout) if reporter.isatty else None, reporter.hasmarkup
    causes = [
        *format_root_causes(triage(tallies)),
        *format_weak_cells(tallies),
        time_summary(tallies),
    ]
    for line in [
        *(colourize(line, colour) for line in [*header(run), ""]),
        *format_table(tallies, width, colour),
        *(colourize(line, colour) for line in causes),
    ]:
        reporter.write_line(line)
    for line in limits:
        reporter.write_line(line, yellow=True)
    for line in [*lines_to_add(tallies), *describe_not_required(run, tallies)]:
        reporter.write_line(line, yellow=True)
    for known in unmatched_known_failures(run):
        reporter.write_line(
            f"{known.source}: speaks of no cell of this run: {known.name} {known.dtype} "
            f"{known.aspect}",
            yellow=True,
        )
    for words in describe_damaged_records(run.options.failures):
        reporter.write_line(f"warning: {words}", yellow=True)
    write_reports(as_json(run, tallies) | ({"left_out": left_out} if left_out else {}), reports)
    for line in next_steps(run, tallies, reports["--report"]):
        reporter.write_line(line)


def describe_not_required(run: Verification, tallies: list[dict[str, Any]]) -> list[str]:
    """Write one line for each backend of which something failed that need not hold."""
    failed: dict[str, Counter[str]] = defaultdict(Counter)
    for tally in tallies:
        if tally["verdict"] == "failed" and not run.is_red(tally):
            failed[tally["backend"]][tally["aspect"]] += 1
    return [
        f"{backend}: not required, and no failure of this run: "
        + ", ".join(f"{count} failed cells of {aspect}" for aspect, count in aspects.items())
        + "; to require them: --require contract"
        for backend, aspects in failed.items()
    ]
