"""
The programs that show the failures of a report, as files beside its page: they are those that the
run wrote beside its records.
"""

import shutil
from collections import defaultdict
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
    report as it was saved. Return where each is from there, by the hash of its record; without
    those that could not be written, or copied.
    """
    found = {}
    places = [Path(report.get("failures", FAILURES))] + ([saved.parent / FOLDER] if saved else [])
    for name in _hashes_of_one(report):
        copy = page.parent / FOLDER / f"{name}.py"
        programs = (place / copy.name for place in places)
        with suppress(OSError):
            if program := next((path for path in programs if path.exists()), None):
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(program, copy)
        if copy.exists():
            found[name] = f"{FOLDER}/{copy.name}"
    return found


def _hashes_of_one(report: dict[str, Any]) -> list[str]:
    """
    List the hashes that one implementation alone failed on: where several did, the program is of
    the last of them.
    """
    who = defaultdict(set)
    for tally in report["tallies"]:
        for record in filter(None, (found["record"] for found in tally["findings"])):
            who[record["hash"]].add((record["backend"], record["implementation"]))
    return [name for name, failed in who.items() if len(failed) == 1 and name.isalnum()]
