"""
Progress: on a terminal one line that says where a run is, in place of pytest's dots; with -v each
verdict as it comes too, above that line or, in a pipe and a log, in place of the dots.
There a short answer tells what fails the moment it is found.
"""

import math
import os
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import suppress
from typing import Any, cast

import pytest
from rich.console import Console
from rich.live import Live
from rich.text import Text

from attnverify.isolation import status_board
from attnverify.judge.invoke import announce
from attnverify.report.live.remaining import LONG, LONG_CALL, Remaining, advise
from attnverify.report.terminal_colours import fold, terminal_width
from attnverify.report.waiting import FIRST
from attnverify.verdicts.tally import NOT_MET, Options

FEW = 60
"""Cells of a run that has a line for each as it comes; of more those that fail have one."""

SECONDS = 0.1
"""Between two lines; the eye needs no more."""

AHEAD = 10
"""So many times the seconds that a run has taken may it be said to take yet."""

SILENCE = 10.0
"""Seconds without a line after which a pipe is told where a run is; later an eighth of its time."""

Status = tuple[str, Any, Any]


def progress_of(config: pytest.Config, reporter: Any, tells: bool) -> "Plugin | None":
    """
    Choose what a run shows of itself while it lasts, and whether it ``tells`` each verdict; None
    where pytest's dots or words do, and in the workers of pytest-xdist.
    """
    is_worker = hasattr(config, "workerinput")  # a run that a worker starts has a pipe of its own
    if is_worker or reporter is None or config.getoption("verbose") not in (0, -1):
        return None
    if reporter.isatty and not os.environ.get("CI"):
        return Progress(reporter, tells)
    if tells:
        return Verdicts(reporter)
    return FirstFailures(reporter) if config.getoption("verbose") < 0 else None


class Counts:
    """
    What a run has done so far; under pytest-xdist it lives in the controller, which hears of every
    cell's beginning and end.
    """

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.total = self.done = self.failed = self.cases = self.begun = self.cases_shown = 0
        self.running: dict[str, None] = {}
        self.here, self.there = (
            announce.set(
                lambda own, dtype, case, check: self.tick(case.recipe.sizes if case else {})
            ),
            status_board.on_case_begun.set(self.tick_there),
        )
        self.remaining: Remaining | None = None
        self.given, self.is_advised = dict[str, Any](), False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        asked = session.config.getoption
        self.given = {name: asked(f"attn_{name}") for name in ("dtype", "profile", "minutes")}
        cells = {
            x.nodeid: x.callspec.params.get("cell") for x in session.items if hasattr(x, "callspec")
        }
        if not asked("attn_inputs") and cells and all(cells.values()):
            self.remaining = Remaining(cells, Options(self.given["profile"]))
        self.count(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self.count(len(ids))

    def count(self, total: int) -> None:
        self.total = total

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.running[nodeid] = None
        if self.remaining:
            self.remaining.begin(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.running.pop(nodeid, None)
        self.done, self.begun = self.done + 1, 0
        if self.remaining:
            self.remaining.end(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed += report.failed
        self.cases += sum(tally["cases"] + tally["checks"] for tally in tallies_of(report))

    def pytest_sessionfinish(self) -> None:
        announce.reset(self.here)
        status_board.on_case_begun.reset(self.there)

    def tick(self, sizes: Mapping[str, int], many: int = 1) -> None:
        """Note that a case of these sizes has begun, the last of so many."""
        self.begun += 1
        if self.remaining:
            self.remaining.call(sizes, many)
        left = self.seconds_left() if not self.is_advised else None
        if left and left > LONG and (words := advise(left, self.given)):
            self.is_advised = True
            self.say(words)

    def tick_there(self, case: Mapping[str, Any], many: int) -> None:
        """Note the same of a case in a process of its own, the last of so many."""
        self.tick((case.get("recipe") or {}).get("sizes", {}), many)

    def under_way(self) -> str:
        """Say how far the cell is that has no verdict yet; "" where none is."""
        names = [name_of(nodeid) for nodeid in self.running]
        return f"{self.begun} cases into {names[0]}" if names and self.begun else ""

    def say(self, line: str) -> None:
        """Print a line while cells are judged; nowhere, but where somebody looks."""

    def seconds_left(self) -> float | None:
        """
        Estimate the seconds that are left: by calls, or by cells where those are unknown; None
        where they would be so many times those that were measured that nothing is known yet.
        """
        elapsed = time.monotonic() - self.start
        if self.remaining:
            left = self.remaining.seconds()
        else:
            left = elapsed / self.done * (self.total - self.done) if self.done >= 3 else None
        return left if left is None or left <= AHEAD * elapsed else None

    def line(self, width: int) -> str:
        """
        Format ``41/128 cells, 5210 cases, 3 failed, about 1:40 left: softmax float16 values``, with
        as much of the cell's name, or of what there is to say, as the width has room for.
        """
        # the count never goes back, though some calls that were begun are no cases in the end
        self.cases_shown = max(self.cases_shown, self.cases + self.begun)
        told = f"{self.done}/{self.total} cells, {self.cases_shown} cases" + (
            f", {self.failed} failed" if self.failed else ""
        )
        left = self.seconds_left()
        if left is not None and self.done < self.total:
            told += f", about {clock(roughly(left))} left"
        elif self.remaining and (waited := self.remaining.waited()) > LONG_CALL:
            told += f", {waited:.0f} s in this one"
        whole = "".join(f": {name_of(nodeid)}" for nodeid in list(self.running)[:1])
        names = (whole, f": {whole.rpartition('-')[2]}" if "-" in whole else "", "")
        return next((told + name for name in names if len(told + name) <= width), told[:width])


class Verdicts(Counts):
    """
    Nobody watches: a plugin of one run that prints the verdicts of few cells as they come, and dots
    of many; what reads the other end of a pipe has each at once, and where the run is, when it has
    printed nothing for a while.
    """

    def __init__(self, reporter: Any) -> None:
        super().__init__()
        self.reporter, self.over, self.spoken = reporter, threading.Event(), self.start
        self.pipe = -1

    def count(self, total: int) -> None:
        if total <= FEW and not self.total:
            self.reporter._show_progress_info = False  # a percentage behind no dots
            with suppress(OSError):  # what is no file has none that pytest does not catch
                self.pipe = os.dup(sys.stdout.fileno())
                width = (terminal_width(sys.stdout),)
                threading.Thread(target=self.keep_talking, args=width, daemon=True).start()
        super().count(total)

    def keep_talking(self, width: int) -> None:
        """Say where the run is after each silence, until it is over."""
        while not self.over.wait(FIRST / 4):
            now = time.monotonic()
            silence = FIRST if self.spoken == self.start else max(SILENCE, (now - self.start) / 8)
            if self.running and now - self.spoken >= silence:
                self.spoken = now
                self.say(self.line(width))

    def say(self, line: str) -> None:
        """Print a line at once, while pytest catches what is written."""
        terminal = self.reporter._tw
        begun = "\n" if terminal.width_of_current_line else ""
        terminal._current_line = ""
        with suppress(OSError):  # nobody may be there any more
            os.write(self.pipe, f"{begun}{line}\n".encode())

    def pytest_sessionfinish(self) -> None:
        super().pytest_sessionfinish()
        self.over.set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        super().pytest_runtest_logreport(report)
        for tally in tallies_of(report) if self.total <= FEW else ():
            self.spoken = time.monotonic()
            for line in fold(verdict_line(tally), terminal_width(sys.stdout)):
                self.reporter.write_line(line)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> Generator[None, Status, Status]:
        category, letter, word = yield
        told = tallies_of(report) or report.skipped  # what was not judged is told at the end
        return category, "" if told and self.total <= FEW else letter, word


class FirstFailures(Verdicts):
    """
    Nobody watches, and few words are wanted: a plugin of one run that prints the first failure of
    each aspect of an implementation the moment it is found. Of few cells nothing else
    is shown, of many the dots.
    """

    def __init__(self, reporter: Any) -> None:
        super().__init__(reporter)
        self.told = set[tuple[str, ...]]()
        self.is_alone = len(reporter.config.getoption("attn_backend") or ()) == 1

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        Counts.pytest_runtest_logstart(self, nodeid)
        if self.total <= FEW:
            self.end_line()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        Counts.pytest_runtest_logreport(self, report)
        for tally in tallies_of(report) if report.failed else ():
            what = tally["backend"], tally["implementation"], tally["aspect"]
            if what not in self.told:
                self.told.add(what)
                self.spoken = time.monotonic()
                self.end_line()
                words = " ".join(verdict_line(tally).split())
                if self.is_alone:  # the first line of the run names it
                    words = words.replace(f" of {tally['backend']}: ", ": ", 1)
                *lines, last = fold(words, terminal_width(sys.stdout))
                for line in lines:
                    self.reporter.write_line(line)
                self.reporter.write(last, flush=True)

    def end_line(self) -> None:
        """End a line that dots, or a failure, have begun; pytest ends the last one."""
        if self.reporter._tw.width_of_current_line:
            self.reporter.write_line("")


def tallies_of(report: pytest.TestReport) -> list[dict[str, Any]]:
    """Return what a differential test has found, once it has."""
    return [
        cast(dict[str, Any], value)
        for name, value in getattr(report, "user_properties", ())  # an error of collecting has none
        if name == "tally" and report.when == "call"
    ]


class Progress(Counts):
    """
    A terminal: a plugin of one run whose last line says where it is. It ``tells`` each verdict, or
    how many failed.
    """

    def __init__(self, reporter: Any, tells: bool) -> None:
        self.tells = tells
        # while a cell is judged, pytest catches what is written to the usual one
        self.terminal = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        self.display = Live(
            console=Console(file=self.terminal),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self.display.start()
        self.display.console.show_cursor()  # a run that dies would leave the terminal without
        self.shown = -math.inf
        # pytest's own percentage would break the line; no public option says so this late
        reporter._show_progress_info = False
        super().__init__()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        super().pytest_runtest_logstart(nodeid)
        self.show()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        super().pytest_runtest_logreport(report)
        for tally in tallies_of(report) if self.tells else ():
            if self.total <= FEW or report.failed:
                self.tell(verdict_line(tally, report.failed))

    def tell(self, line: str) -> None:
        """Print a verdict above the line of progress, as it comes."""
        with suppress(OSError):
            self.display.console.print(Text(line, no_wrap=True, overflow="ellipsis"))

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, Status, Status]:
        """Give the category as ever, and no dot."""
        category, _, _ = yield
        return category, "", ""

    def pytest_sessionfinish(self) -> None:
        super().pytest_sessionfinish()
        with suppress(OSError):  # the terminal may be gone; the run is not
            self.display.stop()
            self.terminal.close()

    def tick(self, sizes: Mapping[str, int], many: int = 1) -> None:
        super().tick(sizes, many)
        self.show()

    def say(self, line: str) -> None:
        self.tell(line)

    def show(self) -> None:
        now = time.monotonic()
        if now - self.shown >= SECONDS:
            self.shown = now
            line = Text(self.line(self.display.console.width), no_wrap=True)
            with suppress(OSError):
                self.display.update(line, refresh=True)


Plugin = Progress | Verdicts | FirstFailures


def verdict_line(tally: Mapping[str, Any], is_red: bool = True) -> str:
    """Format ``failed  values  float32  softmax of my_kernel: 3 of 54 cases: NaN``"""
    first = next(iter(str(tally["reason"]).splitlines()), "")
    kinds = [finding["kind"] for finding in tally["findings"]]
    why = "; ".join(kinds) if tally["verdict"] == "failed" else first
    told = f"{tally['implementation']} of {tally['backend']}" + (f": {why}" if why else "")
    word = NOT_MET if tally["verdict"] == "failed" and not is_red else tally["verdict"]
    return f"{word:<13} {tally['aspect']:<12} {tally['dtype']:<8} {told}"


def roughly(seconds: float) -> float:
    """Round as what is estimated is known: to seconds, tens of them, or minutes."""
    step = 60 if seconds > 180 else 10 if seconds > 30 else 1
    return max(round(seconds / step), 1) * step


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def name_of(nodeid: str) -> str:
    """
    Read ``softmax-my_kernel-float16 values`` of
    ``differential.py::test_values[softmax-my_kernel-float16]``, to which some versions of
    pytest-xdist append the worker's group: ``@softmax-float16``.
    """
    aspect, _, cell = (
        nodeid.partition("]@")[0].rpartition("::")[2].removeprefix("test_").partition("[")
    )
    return f"{cell.rstrip(']')} {aspect.replace('_', ' ')}"
