"""
Grade what is told of these reports: ``python -m tests.reports.later.opened --record R`` runs the
wrong and the repaired file of each in the quick profile, by tests/reports/grade.py, prints a line
each, and writes what was told into R. ``--folder`` grades other reports of the same form: those
beside, closed and third, whose records keep what was told first where it is told otherwise now.

wrong file      right, vague, missing, untrue, green or no report
repaired file   green, accused or no report
"""

import argparse
import itertools
import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from tests.reports.grade import findings_of, grade, run, told_of

FILES = ("wrong", "right")


def judged(path: Path, options: list[str]) -> list[dict[str, Any]] | None:
    """What failed of a file, the finding shown first in front; None where no report came."""
    try:
        report = run(path.read_text(), options)
    except subprocess.TimeoutExpired:
        return None
    return None if report is None else findings_of(report)


def graded(folder: Path, name: str) -> dict[str, Any]:
    """One of the two files of a report."""
    entry = json.loads((folder / "expected.json").read_text())
    found = judged(folder / f"{name}.py", entry["run"])
    said = [told_of(one) for one in found or ()]
    if found is None:
        return {name: "no report"}
    if name == "right":
        return {name: "accused" if found else "green", "told_of_right": said}
    return {name: grade(entry, found), "told": said, "kind": entry["kind"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--files", nargs="+", choices=FILES, default=FILES)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--record", type=Path, help="what it has of other files is kept")
    given = parser.parse_args()
    kept = given.record is not None and given.record.exists()
    record = json.loads(given.record.read_text()) if kept else {}
    names = given.names or sorted(path.parent.name for path in given.folder.glob("*/expected.json"))
    for file, name in itertools.product(given.files, names):
        one = graded(given.folder / name, file)
        record[name] = record.get(name, {}) | one
        said = "; ".join(one.get("told", one.get("told_of_right", ())))[:200]
        print(f"{file} {one[file]:9} {name}: {said}", flush=True)
        if given.record:
            given.record.write_text(json.dumps(record, indent=1) + "\n")
    for file in given.files:
        counts = Counter(one[file] for one in record.values() if file in one)
        print(f"{file}: " + ", ".join(f"{word} {count}" for word, count in counts.items()))


if __name__ == "__main__":
    main()
