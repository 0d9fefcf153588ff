"""
The report of a run as JSON, and where reports are written.
"""

import json
import math
import platform
import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnverify import __version__
from attnverify.device_assignment import gpu_descriptions
from attnverify.machine import count_processors, describe_machine
from attnverify.report.html import report_page
from attnverify.report.root_causes import triage

if TYPE_CHECKING:
    from attnverify.session import Verification


SCHEMA = Path(__file__).with_name("report.schema.json")
VERSION = 3
"""Of the schema, which describes what a report holds."""

READABLE = (1, 2, VERSION)
"""The versions that can be read: 1 knew no cells that were left out."""


def package_versions() -> str:
    found = []
    for package in ("numpy", "hypothesis", "ml_dtypes"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def known_kinds(tallies: list[dict[str, Any]]) -> dict[str, int]:
    """Group the known failures by their kind; "" for those whose line says none."""
    kinds = [tally["kind"] for tally in tallies if tally["verdict"] == "known failure"]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def as_json(run: "Verification", tallies: list[dict[str, Any]]) -> dict[str, Any]:
    """Describe the whole run for a machine: options, backends, every tally."""
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
        "version": VERSION,
        "attnverify": __version__,
        "options": options,
        "failures": run.options.failures,
        "installed": package_versions(),
        "environment": describe_environment(),
    }
    return about | {"backends": backends, "tallies": tallies, **found}


def json_text(report: dict[str, Any]) -> str:
    """Write the report as JSON for people too: a row of numbers or words is one line."""
    text = json.dumps(_spell(report), indent=1, allow_nan=False)
    return ROW.sub(lambda row: f"[{re.sub(chr(10) + ' +', ' ', row[1])}]", text) + "\n"


def _spell(value: Any) -> Any:
    """Rebuild the same data, numbers that JSON does not have as words: "nan", "inf", "-inf"."""
    if isinstance(value, dict):
        return {name: _spell(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_spell(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_report(text: str) -> dict[str, Any]:
    """Read the report that :func:`json_text` wrote. Raises ValueError where it is another thing."""
    report = json.loads(text)
    if not isinstance(report, dict) or not isinstance(report.get("tallies"), list):
        raise ValueError("it has no tallies")
    version = report.get("version", VERSION)
    if version not in READABLE:
        raise ValueError(f"version: wanted {' or '.join(map(str, READABLE))}, got {version}")
    for tally in report["tallies"]:
        tally["budget"] = float(tally["budget"])
    return report


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


def describe_environment() -> dict[str, str]:
    """Describe the machine on which the report is made."""
    found = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "cores": str(count_processors()),
    } | describe_machine()
    return found | ({"devices": ", ".join(gpu_descriptions())} if gpu_descriptions() else {})
