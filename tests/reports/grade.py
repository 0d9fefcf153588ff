"""
Grade what is told of the reports: ``python tests/reports/grade.py [SLUG ...]`` runs the wrong file
of each (all, if none is named) in the quick profile, and ``--repaired`` the repaired one.

right    one of the expressions of ``told`` is found in a cause that is required, none of
         ``not_told``
vague    a cause is told, but not the one that must be
missing  nothing but the kind of the failure is told, or the search for a cause broke off
untrue   something is told that must not be
green    nothing failed that is required

Sixty reports take half an hour of one core, so that no test runs them all; the last line is what
is published.

The wrong file is made of the repaired one, ``file``, which several reports may share, by what
stands in ``instead``: lines of the repaired file and those of the wrong one. Without a ``file``
(in another ``--folder``) both lie beside each other: ``SLUG_right.py`` and ``SLUG_wrong.py``.
With a ``spec`` it is judged by that function of the folder's ``specifications.py``.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GRADES = ("right", "vague", "missing", "untrue", "green")
REQUIRED = ("values", "gradients")
SECONDS = 600


def text_of(slug: str, entry: dict[str, Any], repaired: bool, folder: Path = HERE) -> str:
    """What stands in the wrong or the repaired file of a report."""
    if "file" not in entry:
        return (folder / f"{slug}_{'right' if repaired else 'wrong'}.py").read_text()
    text = (folder / entry["file"]).read_text()
    for own, other in () if repaired else entry["instead"]:
        if text.count(own) != 1:
            raise ValueError(f"instead: wanted {own!r} once in {entry['file']}")
        text = text.replace(own, other)
    return text


def options_of(entry: dict[str, Any], folder: Path) -> list[str]:
    """What is asked of the command."""
    spec = entry.get("spec")
    return [*entry["run"], *(("--spec", f"{folder / SPECIFICATIONS}:{spec}") if spec else ())]


SPECIFICATIONS = "specifications.py"


def run(text: str, options: Sequence[str]) -> dict[str, Any] | None:
    """Judge a file in a folder of its own; its report, or None where none was written."""
    with tempfile.TemporaryDirectory() as folder:
        report, path = Path(folder, "report.json"), Path(folder, "given.py")
        path.write_text(text)
        command = [sys.executable, "-m", "attnverify", "run", str(path), "--profile", "quick"]
        subprocess.run(
            [*command, *options, "--report-json", str(report)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(HERE.parent.parent)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
        )
        return json.loads(report.read_text()) if report.exists() else None


def findings_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What failed of that which is required."""
    return [
        finding
        for tally in report["tallies"]
        if tally["aspect"] in REQUIRED and tally["verdict"] == "failed"
        for finding in tally["findings"]
    ]


def told_of(finding: dict[str, Any]) -> str:
    """The cause and its condition as they are printed; of a crash or race its own words."""
    cause = (finding["cause"] or {}).get("words", "")
    when = " and ".join(finding["condition"] or [])
    own = "" if finding["kind"] in NUMERIC else f"{finding['kind']}: {finding['message']}"
    return " ".join(part for part in (own, cause, f"when {when}" if when else "") if part)


BROKEN_OFF = "the search for it broke off"
NUMERIC = ("wrong number", "not exactly 0", "NaN", "infinity")


def grade(entry: dict[str, Any], findings: Sequence[dict[str, Any]]) -> str:
    """Grade what is told of a wrong file."""
    if not findings:
        return "green"
    causes = [told_of(finding) for finding in findings]
    text = "\n".join(causes)
    if any(re.search(one, text, re.IGNORECASE) for one in entry["not_told"]):
        return "untrue"
    if BROKEN_OFF in text:
        return "missing"
    if any(re.search(one, text, re.IGNORECASE) for one in entry["told"]):
        return "right"
    caused = any(finding["cause"] or finding["kind"] not in NUMERIC for finding in findings)
    return "vague" if caused else "missing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("slugs", nargs="*")
    parser.add_argument("--repaired", action="store_true", help="the repaired files, to be green")
    parser.add_argument("--folder", type=Path, default=HERE)
    given = parser.parse_args()
    expected = json.loads((given.folder / "expected.json").read_text())
    counts: Counter[str] = Counter()
    for slug in given.slugs or expected:
        entry = expected[slug]
        text = text_of(slug, entry, given.repaired, given.folder)
        report = run(text, options_of(entry, given.folder.resolve()))
        found = [] if report is None else findings_of(report)
        graded = "no report" if report is None else grade(entry, found)
        counts[graded] += 1
        print(f"{graded:9} {slug}: {'; '.join(map(told_of, found))[:300]}", flush=True)
    print(", ".join(f"{name} {counts[name]}" for name in (*GRADES, "no report")))


if __name__ == "__main__":
    main()
