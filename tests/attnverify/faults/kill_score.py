"""How soon the suite notices each fault, and whether it leaves the controls alone."""

import json
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, cast

import pytest

from attnverify.faults.registry import FAULT_KINDS, Fault
from attnverify.verdicts.tally import Options
from tests.attnverify.faults.controls.registry import CONTROLS
from tests.attnverify.faults.first_failure import first_failure, implementation_of


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
