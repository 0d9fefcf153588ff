"""
The report of a run as JSON, and where reports are written.
"""

import json
import platform
import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnverify.device_assignment import gpu_descriptions
from attnverify.machine import count_processors, describe_machine
from attnverify.report.html import report_page
from attnverify.report.root_causes import triage

if TYPE_CHECKING:
    from attnverify.session import Verification


def package_versions() -> str:
    found = []
    for package in ("numpy", "hypothesis", "ml_dtypes"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def known_kinds(tallies: list[dict[str, Any]]) -> dict[str, int]:
    """The known failures by their kind; "" for those whose line says none."""
    kinds = [tally["kind"] for tally in tallies if tally["verdict"] == "known failure"]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def as_json(run: "Verification", tallies: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole run for a machine: options, backends, every tally."""
    backends = [
        {
            key: getattr(backend, key)
            for key in ("name", "source", "broken", "missing", "notes", "versions", "device")
        }
        for backend in run.backends
    ]
    options = {"profile": run.options.profile, "seed": run.options.seed, "cases": run.options.cases}
    found = {
        "known_failures": known_kinds(tallies),
        "root_causes": [cause.as_dict() for cause in triage(tallies)],
    }
    about = {
        "options": options,
        "failures": run.options.failures,
        "installed": package_versions(),
        "environment": environment(),
    }
    return about | {"backends": backends, "tallies": tallies, **found}


def json_text(report: dict[str, Any]) -> str:
    """The report as JSON for people too: a row of numbers or words is one line."""
    return (
        ROW.sub(
            lambda row: f"[{re.sub(chr(10) + ' +', ' ', row[1])}]", json.dumps(report, indent=1)
        )
        + "\n"
    )


ROW = re.compile(r"\[\n +([^\[\]{}]*?)\n +\]")
"""A list without lists in it; a line's end stands in no word of JSON."""


REPORTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "--report": report_page,
    "--report-json": json_text,
}
"""What is written for each option that asks for a report."""


def write_reports(report: dict[str, Any], paths: dict[str, str | None]) -> None:
    """Write the reports that were asked for, each to the path of its option."""
    for option, path in paths.items():
        if path:
            Path(path).write_text(REPORTS[option](report), encoding="utf-8", errors="replace")


def environment() -> dict[str, str]:
    """The machine on which the report is made."""
    found = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "cores": str(count_processors()),
    } | describe_machine()
    return found | ({"devices": ", ".join(gpu_descriptions())} if gpu_descriptions() else {})
