"""
The programs that show the failures of a report, as files beside its page: they are those that the
run wrote beside its records.
"""

import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from attnverify.options import FAILURES

FOLDER = "reproducers"


def copy_reproducers(
    report: dict[str, Any], page: Path, saved: Path | None = None
) -> dict[str, str]:
    """
    Copy them into a folder beside the page, from where the failures are kept or from beside the
    report as it was saved. Return where each is from there, by its name; without those that could
    not be written, or copied.
    """
    found = {}
    places = [Path(report.get("failures", FAILURES))] + ([saved.parent / FOLDER] if saved else [])
    for name in _names_of_programs(report):
        copy = page.parent / FOLDER / name
        programs = (place / name for place in places)
        with suppress(OSError):
            if program := next((path for path in programs if path.exists()), None):
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(program, copy)
        if copy.exists():
            found[name] = f"{FOLDER}/{name}"
    return found


def _names_of_programs(report: dict[str, Any]) -> list[str]:
    """List the files of the programs; what is no such name is none."""
    findings = [found for tally in report["tallies"] for found in tally["findings"]]
    names = [(found["record"] or {}).get("program", "") for found in findings]
    return [name for name in dict.fromkeys(names) if re.fullmatch(NAME, name)]


NAME = r"\w+-\w+\.py"
