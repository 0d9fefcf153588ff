"""
What JUnit XML says of cells, so that its viewers can show them: an operation is a class, a cell has
short properties.
"""

import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from attnverify.report.live.progress import verdict_line

NEVER = ("", 0, "Skipped: not judged: the run was broken off")
"""Why a test was never run, as pytest has it of one that is skipped."""

SHOWN = ("operation", "implementation", "backend", "dtype", "aspect", "verdict", "cases", "budget")


class WordedTally(dict[str, Any]):
    """A tally that is one line of words where it is printed: pytest writes str() of a property."""

    def __str__(self) -> str:
        return verdict_line(self)


class WordedProperties:
    """
    Puts words in place of tallies, in the process that writes the XML, before it is written, and
    into it the tests that a run which was broken off has ``never_reported``.
    """

    def __init__(self, never_reported: Callable[[], list[str]]) -> None:
        self.never_reported = never_reported

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Report them as skipped, where an XML is written."""
        asked = session.config.getoption("xmlpath", None)
        for name in self.never_reported() if asked else ():
            report = pytest.TestReport(name, (name, None, ""), {}, "skipped", NEVER, "setup")
            session.config.hook.pytest_runtest_logreport(report=report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in [*report.user_properties]:
            if name == "tally" and isinstance(value, dict):
                report.user_properties = junit_properties(value)


def junit_properties(tally: dict[str, Any]) -> list[tuple[str, object]]:
    """The properties of a cell's report: its tally, and what of it stands for itself."""
    return [("tally", WordedTally(tally)), *((name, tally[name]) for name in SHOWN)]


CELL = re.compile(r"test_(\w+)\[(\w+)-(.*)\]")
"""The id of a cell: aspect, operation, and what else tells it from others."""


def name_cells(path: str) -> None:
    """Name the cells of a run's XML: no file of the user's holds them, so they have no class."""
    tree = ElementTree.parse(path)
    for suite in tree.iter("testsuite"):
        suite.set("name", "attnverify")
    for cell in tree.iter("testcase"):
        if found := CELL.fullmatch(cell.get("name", "")):
            aspect, operation, rest = found.groups()
            cell.set("classname", f"attnverify.{operation}")
            cell.set("name", f"{aspect.replace('_', ' ')} [{rest}]")
    tree.write(path, encoding="utf-8", xml_declaration=True)
