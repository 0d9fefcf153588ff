"""
Runs of ``attnverify`` and of pytest inside a test: what they print, the status they end with, the
tallies that they report.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attnverify import ROOT, cli
from attnverify.isolation import supervisor
from attnverify.options import OPTIONS
from attnverify.plugin import setup as plugin_setup


@dataclass(frozen=True)
class Run:
    status: int
    output: str
    report: dict[str, Any] | None = None

    def verdicts(self) -> dict[tuple[str, str], str]:
        """The verdict of each implementation and aspect."""
        assert self.report is not None
        return {
            (tally["implementation"], tally["aspect"]): tally["verdict"]
            for tally in self.report["tallies"]
        }


def load_backends_here(patch: pytest.MonkeyPatch) -> None:
    """
    Judge files in this process, where their isolation is not what is tested: a process takes a
    second to start, and says the same (isolation/test_isolation.py).
    """
    for module in (supervisor, plugin_setup):
        patch.setattr(module, "runs_in_own_process", lambda source, which: False)


WIDE = "400"
"""Columns in which no sentence is folded, unless a test asks for others."""


def inside(main: Any, arguments: list[str]) -> Run:
    """Run a main function here."""
    output, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = before or WIDE
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            status = main(arguments)
    finally:
        os.environ.pop("COLUMNS")
        os.environ |= {"COLUMNS": before} if before else {}
    return Run(int(status), output.getvalue())


def verify(*arguments: str) -> Run:
    return inside(cli.main, [*arguments])


def judged(*options: str, profile: str = "quick", dtype: str = "float32") -> Run:
    """
    ``attnverify run -v`` with a report, in the current directory; all that fails is red, and told
    in full.
    """
    report = Path("report.json")
    report.unlink(missing_ok=True)
    line = ("--profile", profile, "--dtype", dtype, "--report-json", str(report))
    done = verify("run", "-v", *line, "--require", "isolation", *options)
    return Run(done.status, done.output, report_in(report) if report.exists() else None)


def report_in(path: str | Path) -> dict[str, Any]:
    """
    A report without what no two runs have in common: when it was and how long it took, the time of
    each cell, and where the failures are kept.
    """
    report: dict[str, Any] = json.loads(Path(path).read_text())
    for tally in report["tallies"]:
        tally.pop("seconds", None)
    for name in ("failures", "date", "seconds"):
        report.pop(name, None)
    return report


def prefixed(arguments: tuple[str, ...]) -> list[str]:
    """Our options as pytest takes them."""
    return [
        f"--attn-{word[2:]}" if word[2:].partition("=")[0] in OPTIONS else word
        for word in arguments
    ]


def in_pytest(*arguments: str) -> Run:
    """``pytest`` with our options, written without their prefix."""
    return inside(
        pytest.main,
        [
            "-p",
            "attnverify.plugin",
            "-p",
            "no:cacheprovider",
            "-c",
            os.devnull,
            "--rootdir",
            ".",
            "--import-mode=importlib",
            *prefixed(arguments),
        ],
    )


def searched(folder: Path) -> str:
    """
    Where a process finds modules: in a folder, and where those of this test do. Without the latter
    it judges calls of model size, two thirds of a green run (tests/conftest.py).
    """
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def in_a_process(*arguments: str, start: tuple[str, ...] = ("-m", "attnverify")) -> Run:
    """``python -m attnverify ...`` in a process of its own."""
    environment = {"COLUMNS": WIDE} | os.environ | {"PYTHONPATH": searched(ROOT)}
    done = subprocess.run(
        [sys.executable, *start, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    return Run(done.returncode, done.stdout + done.stderr)
