"""
Issue slots of our kernels: what the profiler counted on a card beside what the machine code
predicts, as ``python -m benchmarks.profile --record`` keeps them.
"""

import json
from pathlib import Path

__all__ = ["FILE", "TITLES", "describe_issue_slots", "read_issue_slots"]

FILE = "why.json"
TITLES = ("kernel", "predicted", "measured", "measured / predicted", "busy", "not measured because")

Cells = tuple[str, ...]


def read_issue_slots(root: Path) -> list[Cells]:
    """Read the newest figures below a folder of results, a row for each kernel; none, no rows."""
    found = sorted(root.rglob(FILE), key=lambda path: path.stat().st_mtime)
    if not found:
        return []
    return [
        (
            one["kernel"],
            _number(one["predicted"]),
            _number(one["measured"]),
            _ratio(one["measured"], one["predicted"]),
            _number(one["busy"], " %"),
            one["why_not"],
        )
        for one in json.loads(found[-1].read_text())
    ]


def describe_issue_slots(rows: list[Cells]) -> list[str]:
    """Describe each kernel in a line, where there are any."""
    if not rows:
        return []
    head = "issue slots of 64 x 64 pairs, predicted and measured:"
    return [head, *(f"  {row[0]}: {row[1]}, {_outcome(row)}" for row in rows)]


def _outcome(row: Cells) -> str:
    _, _, measured, ratio, busy, why_not = row
    return f"not measured: {why_not}" if why_not else f"{measured} ({ratio}), {busy} busy"


def _number(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.0f}{unit}"


def _ratio(measured: float | None, predicted: float | None) -> str:
    return f"{measured / predicted:.2f}x" if measured and predicted else "-"
