"""How a run closes: of each root cause one cell in full, the table, and what to do next."""

import sys
from collections import defaultdict
from collections.abc import Generator, Iterable
from copy import copy
from typing import Any

import pytest

from attnverify.backends.calls.arguments import NEVER_GIVEN, NOT_JUDGED
from attnverify.backends.declarations import NO_FLOAT_MASK, TAKES_NO
from attnverify.backends.functions import GUESSED, refused_of
from attnverify.backends.loader import notes_in
from attnverify.failures.finding import Finding
from attnverify.failures.record import describe_damaged_records
from attnverify.report.answer import answer, is_right, right_in_words, rows_in_words
from attnverify.report.causes.root_causes import triage
from attnverify.report.causes.words import (
    SHORT_DTYPES,
    format_root_causes,
    format_weak_cells,
    representative_cells,
)
from attnverify.report.json_report import as_json, write_reports
from attnverify.report.live.progress import tallies_of
from attnverify.report.next_steps import (
    Cut,
    declaration,
    describe_outcomes,
    is_failed,
    lines_to_add,
    next_steps,
    see_again,
    wrong_cells,
)
from attnverify.report.table import describe_given, describe_words, format_table, header
from attnverify.report.terminal_colours import colourize, fold_lines, terminal_width
from attnverify.session import Verification, unmatched_known_failures
from attnverify.timing import time_summary
from attnverify.verdicts.one_case import found_so_far


def folded(report: pytest.TestReport, width: int | None) -> pytest.TestReport:
    """A report of a cell with its words as wide as a terminal; any other as it is."""
    if width is None or not tallies_of(report):
        return report
    shown = copy(report)
    shown.longrepr = "\n".join(fold_lines(report.longreprtext.splitlines(), width))
    return shown


def is_quiet(config: pytest.Config) -> bool:
    """Tell whether -q was given to ``attnverify run``, which gives pytest one of its own."""
    return bool(config.getoption("verbose") <= QUIET)


QUIET = -2


def is_brief(config: pytest.Config) -> bool:
    """Tell whether ``attnverify run`` was asked for no more words (-v), nor for fewer (-q)."""
    return bool(QUIET < config.getoption("verbose") < 0) and IN_FULL not in config.stash


def seeks_mends(config: pytest.Config) -> bool:
    """Tell whether ``attnverify run`` was started, and asked for words."""
    return is_brief(config) or (IN_FULL in config.stash and not is_quiet(config))


IN_FULL = pytest.StashKey[bool]()
"""Whether ``attnverify run`` was given one -v."""


class Collector:
    """Takes the tallies from the reports of one run; under xdist, those of all workers."""

    def __init__(self) -> None:
        self.tallies: list[dict[str, Any]] = []
        self.red: set[int] = set()
        self.failed: list[pytest.TestReport] = []
        self.judged: set[str] = set()
        self.reported: set[str] = set()
        self.found: dict[str, Any] = {}
        """What was found in the cell under way."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        """Listen to what is found in a cell before it has a verdict."""
        token = found_so_far.set(self.note)
        try:
            return (yield)
        finally:
            found_so_far.reset(token)

    def note(self, found: dict[str, Any]) -> None:
        self.found = found

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.tallies.extend(found := tallies_of(report))
            self.red |= {id(tally) for tally in found if report.failed}
            self.judged |= {report.nodeid} if found else set()
            self.found = {}
        if report.when == "call" or report.skipped:
            self.reported.add(report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: Any, config: pytest.Config
    ) -> Generator[None, Any, Any]:
        """
        Of each root cause pytest shows one cell in full (with -v, every cell); the others are in
        the triage, one line each. Where the answer is brief it tells them all, and pytest none.
        """
        stats, full = terminalreporter.stats, representative_cells(self.tallies, self.is_red)
        quiet = is_quiet(config)
        brief = is_brief(config) and any(map(self.is_wrong, self.tallies))
        if quiet or brief or (full and config.getoption("verbose") < 1):
            self.failed = stats.get("failed", [])
            stats["failed"] = [
                folded(report, terminal_width(sys.stdout))
                for report in self.failed
                if not quiet
                and all(not self.is_wrong(x) if brief else x in full for x in tallies_of(report))
            ]
        return (yield)

    def is_red(self, tally: dict[str, Any]) -> bool:
        """Tell whether a tally is that of a test which failed."""
        return id(tally) in self.red

    def is_wrong(self, tally: dict[str, Any]) -> bool:
        """Tell whether a tally is that of a cell that failed and must not."""
        return self.is_red(tally) and is_failed(tally)

    def restore(self, terminalreporter: Any) -> None:
        """Count all the same what was not shown."""
        if self.failed:
            terminalreporter.stats["failed"] = self.failed


def print_summary(
    reporter: Any,
    run: Verification,
    tallies: list[dict[str, Any]],
    reports: dict[str, str | None],
    cut: Cut,
    limits: list[str],
) -> None:
    """
    Print the last section of a run; the reports that were asked for are written as well. Cells that
    were not judged are told, by ``limits`` and in the reports, of a green run too.
    """
    width, colour = terminal_width(sys.stdout), reporter.hasmarkup
    quiet = is_quiet(reporter.config)
    brief = is_brief(reporter.config) and bool(wrong_cells(run, tallies))
    is_early = bool(cut.left) and not tallies
    right = is_brief(reporter.config) and (is_early or is_right(run, tallies))

    def show(lines: Iterable[str], **markup: bool) -> None:
        for line in lines if not quiet else ():
            reporter.write_line(colourize(line, colour and not markup), **markup)

    def tell(lines: Iterable[str], **markup: bool) -> None:
        show(fold_lines(lines, width), **markup)

    if brief:
        show(answer(run, tallies, width))
        tell([*rows_in_words(run, tallies), *describe_given(run), *taken_or_refused(run)])
    elif right:
        told = [*right_in_words(run, tallies), *describe_given(run), *notes_of(run)]
        tell([] if is_early else told)
    else:
        if not quiet:
            reporter.section("verification")
        tell([*header(run), ""])
        show(format_table(tallies, width, colour, run.is_red))
        tell(describe_words(tallies, run.is_red) if IN_FULL in reporter.config.stash else [])
        tell(format_root_causes(triage(tallies, run.is_red)))
        found = [Finding.from_dict(plain).mend for x in tallies for plain in x["findings"]]
        tell(dict.fromkeys(str(mend) for mend in found if mend))
        tell([*format_weak_cells(tallies), time_summary(tallies)])
    tell(limits, yellow=True)
    tell(describe_unsupported(tallies), yellow=True)
    tell(describe_unseen(tallies), yellow=True)
    declared = {backend.name: backend.declared for backend in run.backends}
    tell(lines_to_add(tallies, declared, [] if brief else run.backends), yellow=True)
    tell(describe_unmatched(run), yellow=True)
    damaged = describe_damaged_records(run.options.failures)
    tell((f"warning: {words}" for words in damaged), yellow=True)
    report = as_json(run, tallies) | cut.as_dict()
    for words in write_reports(report, reports):
        tell([words], red=True)
    page = reports["--report"]
    more = more_words(page, right) if brief or right else see_again(run, tallies, page)
    tell(more if not is_early else [])
    tell(next_steps(run, tallies, bool(cut.left or limits)))
    outcomes = describe_outcomes(run, tallies, cut, short=quiet or brief)
    for line in outcomes if quiet or brief else fold_lines(outcomes, width):  # one line an outcome
        reporter.write_line(colourize(line, colour))


def taken_or_refused(run: Verification) -> list[str]:
    """Say of each backend what was taken for what, and what of it was not judged, and why."""
    return [
        f"{backend.source}: {note}"
        for backend in run.backends
        for note in backend.notes
        if note in refused_of(backend, run.operations)
        or any(words in note for words in (GUESSED, NEVER_GIVEN, NOT_JUDGED))
    ]


def notes_of(run: Verification) -> list[str]:
    """Write what was found out or assumed of each backend in the dtypes of a run, a line a note."""
    return [f"  note: {note}" for backend in run.backends for note in notes_in(backend, run.dtypes)]


def more_words(page: str | None, right: bool) -> list[str]:
    """Say where the rest is that a brief answer leaves out."""
    pictures = "" if right else " (pictures)"
    rest = f"more: -v ({'table, versions' if right else 'failing cases in full, table'})"
    return [rest, f"report: {page}"] if page else [f"{rest}, --report out.html{pictures}"]


def was_or_were(words: list[str]) -> str:
    """Choose the verb behind words of which the last is meant: ``weights``, ``row without keys``"""
    return "were" if words[-1].partition(" ")[0].endswith("s") else "was"


def listed(words: list[str]) -> str:
    """Write ``mask, dropout or real call``."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


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


def describe_unseen(tallies: list[dict[str, Any]]) -> list[str]:
    """Write one line for each reason by which no case of a required kind was judged."""
    found: dict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)
    lacking: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for tally in tallies:
        options = {kind.partition("=")[0] for kind in tally.get("unseen", {})}
        for kind, why in tally.get("unseen", {}).items():
            if why.startswith(NO_FLOAT_MASK):
                continue  # it is told with the line to add
            whose = tally["backend"], tally["implementation"]
            option = kind.partition("=")[0]
            if option.isidentifier() and why in {f"{TAKES_NO}{own}" for own in options}:
                lacking[whose][option] = None
            else:
                found[*whose, why][kind] = None
    return [
        f"{backend}: {name} was judged without {listed([*options])}, which it does not take"
        for (backend, name), options in lacking.items()
    ] + [
        f"{backend}: no {listed([*kinds])} {was_or_were([*kinds])} judged of {name}: {whose}{why}"
        for (backend, name, why), kinds in found.items()
        for whose in ["it " * why.startswith(TAKES_NO)]
    ]
