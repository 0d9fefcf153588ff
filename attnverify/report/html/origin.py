"""Where a report is from: when the run was, how long it took, and at which commits."""

from datetime import UTC, datetime
from typing import Any

Report = dict[str, Any]

NOT_SAID = "date not said"
"""Of reports of older versions."""


def describe_run(report: Report) -> str:
    """Write ``2026-11-23 14:52 UTC, 49 s, attnverify 0.2.0 ; its commit: 3740e805846f``."""
    told = [_describe_date(report.get("date", ""))]
    if "seconds" in report:
        told.append(_describe_duration(report["seconds"]))
    if "attnverify" in report:
        told.append(f"attnverify {report['attnverify']}")
    commit = f"; its commit: {shorten_commit(report['commit'])}" if "commit" in report else ""
    return f"{', '.join(told)}{commit}"


def commits_of_backends(report: Report) -> dict[str, str]:
    """Say of each backend at which commit it was; nothing where the report does not say."""
    return {
        f"commit of {backend['source']}": shorten_commit(backend["commit"])
        for backend in report.get("backends", [])
        if "commit" in backend
    }


def shorten_commit(text: str) -> str:
    """Twelve digits of a commit are enough to find it."""
    name, space, rest = text.partition(" ")
    return f"{name[:12] if len(name) == WHOLE else name}{space}{rest}"


WHOLE = 40
"""Digits of a commit."""


def _describe_date(text: str) -> str:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return NOT_SAID
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if when.tzinfo else f"{when:%Y-%m-%d}"


def _describe_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
