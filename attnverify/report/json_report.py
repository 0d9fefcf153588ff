"""
The report of a run as JSON, and where reports are written.
"""

import json
import math
import platform
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnverify import __version__
from attnverify.backends.commit import commit_of_backend, commit_of_suite
from attnverify.catalogue.docstrings import clauses, sentence, without_markup
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.device_assignment import gpu_descriptions
from attnverify.faults.registry import read_faults
from attnverify.machine import count_processors, describe_machine
from attnverify.report.causes.root_causes import triage

if TYPE_CHECKING:
    from attnverify.session import Verification


SCHEMA = Path(__file__).with_name("report.schema.json")
VERSION = 17
"""Of the schema, which describes what a report holds."""

READABLE = (*range(1, 17), VERSION)
"""
The versions that can be read: 1 knew no cells that were left out; 3 and those before it neither
when the run was, nor at which commit, nor the arguments of a case; 4 named every program after
its record alone; 5 and those before it had no column for what is hidden from some rows; 6 and
those before it did not say what was required, nor 7 of each root cause; 8 not which kinds of cases
none could show; 9 not of how many cases a condition holds; 12 not whether a cause is all of its
mistakes or each; 16 not what was found in the cell under way when a run was broken off,
nor of a mistake the line that declares it.
"""


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


BACKEND = ("name", "source", "broken", "line", "missing", "notes", "versions", "device")
"""What is told of a backend."""


def as_json(
    run: "Verification", tallies: list[dict[str, Any]], clock: Callable[[], float] = time.time
) -> dict[str, Any]:
    """Describe the whole run for a machine: options, backends, every tally."""
    backends = [
        {key: getattr(backend, key) for key in BACKEND}
        | {"commit": commit_of_backend(backend.source), "required": [*run.required(backend.name)]}
        for backend in run.backends
    ]
    options = {"profile": run.options.profile, "seed": run.options.seed, "cases": run.options.cases}
    found = {
        "known_failures": known_kinds(tallies),
        "root_causes": [cause.as_dict() for cause in triage(tallies, run.is_red)],
    }
    found |= describe_what_was_violated([t for t in tallies if t["verdict"] == "failed"])
    about = describe_origin(run.began, clock)
    about |= {"options": options, "failures": run.options.failures}
    return about | {"backends": backends, "tallies": tallies, **found}


def describe_origin(began: float, clock: Callable[[], float] = time.time) -> dict[str, Any]:
    """Say when a run was, how long it took so far, of what, and on what."""
    return {
        "version": VERSION,
        "attnverify": __version__,
        "commit": commit_of_suite(),
        "date": datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
        "seconds": round(max(clock() - began, 0.0), 1),
        "installed": package_versions(),
        "environment": describe_environment(),
    }


def describe_what_was_violated(failed: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """
    Say what the specification says of each operation that failed, and which clause each mistake
    violates that a diagnosis names.
    """
    findings = [found for tally in failed for found in tally["findings"]]
    records = [found["record"] for found in findings if found["record"]]
    causes = [found["cause"] for found in findings if found["cause"]]
    violated = _clauses_of_mistakes(
        {each["name"] for cause in causes for each in cause["explanations"]}
    )
    names = [each["operation"] for each in (*failed, *records)]
    names += [clause.partition(",")[0] for clause in violated.values()]
    said = {
        n: _describe_specification(CATALOGUE[n]) for n in dict.fromkeys(names) if n in CATALOGUE
    }
    return {"specification": said, "violated": violated}


def _clauses_of_mistakes(names: set[str]) -> dict[str, str]:
    """Find the clauses that those mistakes violate which are seeded as faults."""
    faults = read_faults() if names else {}
    return {name: faults[name].clause for name in sorted(names) if name in faults}


def _describe_specification(operation: Operation) -> dict[str, Any]:
    said, ours = clauses(operation.specification), operation.outside is None
    own = f"attnverify.spec.{operation.chapter}.{operation.name}"
    return {
        "function": own if ours else operation.name,
        "page": f"operations/{operation.forward.name}.html" if ours else "",
        "sentence": without_markup(sentence(operation.specification)),
        "clauses": {str(number): without_markup(text) for number, text in said.items()},
    }


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


def write_page(
    report: dict[str, Any], path: Path, saved: Path | None = None, book: str = ""
) -> None:
    """Write the page of a report and, beside it, the programs that show its failures."""
    from attnverify.report.html import report_page  # a run without a page reads no templates
    from attnverify.report.html.reproducers import copy_reproducers

    page = report_page(report, copy_reproducers(report, path, saved), book)
    path.write_text(page, encoding="utf-8", errors="replace")


def write_json(report: dict[str, Any], path: Path) -> None:
    path.write_text(json_text(report), encoding="utf-8", errors="replace")


REPORTS: dict[str, Callable[[dict[str, Any], Path], None]] = {
    "--report": write_page,
    "--report-json": write_json,
}
"""What writes the report for each option that asks for one."""


def write_reports(report: dict[str, Any], paths: dict[str, str | None]) -> list[str]:
    """
    Write the reports that were asked for, each to the path of its option; say of each that cannot
    be written why.
    """
    told = []
    for option, path in paths.items():
        try:
            if path:
                REPORTS[option](report, Path(path))
        except OSError as error:
            told.append(f"{option}: not written: {error.strerror or error}: {path}")
    return told


def describe_environment() -> dict[str, str]:
    """Describe the machine on which the report is made."""
    found = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "cores": str(count_processors()),
    } | describe_machine()
    return found | ({"devices": ", ".join(gpu_descriptions())} if gpu_descriptions() else {})
