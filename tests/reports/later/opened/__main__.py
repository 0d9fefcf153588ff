"""
Grade what is told of these reports: ``python -m tests.reports.later.opened --record R`` runs the
wrong and the repaired file of each in the quick profile, by tests/reports/grade.py, prints a line
each, and writes what was told into R. ``--folder`` grades other reports of the same form.

wrong file      right, vague, missing, untrue, green or no report
repaired file   green, accused or no report
"""

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from tests.reports.grade import findings_of, grade, run, told_of


def judged(folder: Path, name: str, options: list[str]) -> list[str] | None:
    """What is told of a file, the finding shown first in front; None where no report came."""
    report = run((folder / name).read_text(), options)
    return None if report is None else [told_of(one) for one in findings_of(report)]


def graded(folder: Path) -> dict[str, Any]:
    """Both files of a report."""
    entry = json.loads((folder / "expected.json").read_text())
    report = run((folder / "wrong.py").read_text(), entry["run"])
    findings = [] if report is None else findings_of(report)
    right = judged(folder, "right.py", entry["run"])
    return {
        "kind": entry["kind"],
        "wrong": "no report" if report is None else grade(entry, findings),
        "told": [told_of(one) for one in findings],
        "right": "no report" if right is None else "accused" if right else "green",
        "told_of_right": right or [],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("names", nargs="*", type=re.compile)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    record = {}
    for folder in sorted(path.parent for path in given.folder.glob("*/expected.json")):
        if given.names and not any(one.search(folder.name) for one in given.names):
            continue
        one = record[folder.name] = graded(folder)
        said = "; ".join(one["told"])[:200]
        print(
            f"{one['wrong']:9} {one['right']:9} {folder.name} ({one['kind']}): {said}", flush=True
        )
        if given.record:
            given.record.write_text(json.dumps(record, indent=1) + "\n")
    for column in ("wrong", "right"):
        counts = Counter(one[column] for one in record.values())
        print(f"{column}: " + ", ".join(f"{name} {count}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
