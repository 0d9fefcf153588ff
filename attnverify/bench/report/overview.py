"""``attnverify bench-report``: the committed results in the terminal, and as one page."""

import json
import sys
from pathlib import Path

from attnverify.bench.report.goals import closing_lines
from attnverify.bench.report.html_page import available, report_page
from attnverify.bench.report.results import Record, files, read
from attnverify.bench.report.tables import show


def report(root: Path, device: str | None, page: Path | None) -> int:
    """
    Show the last results of each device; 2 where there are none or what shows them is not
    installed.
    """
    if missing := available():
        print(missing, file=sys.stderr)
        return 2
    found = last_results(root, device)
    for title, records in found.items():
        on = next((record["device"] for record in records if "device" in record), "cpu")
        show(title, records, closing_lines(records, on))
    if page is not None:
        page.write_text(report_page(found), encoding="utf-8")
        print(f"\npage: {page}")
    if not found:
        print(
            f"no results under {root}: pytest --benchmark-only --benchmark-record", file=sys.stderr
        )
    return 0 if found else 2


def last_results(root: Path, device: str | None = None) -> dict[str, list[Record]]:
    """Find the last file of each device, under its name and date."""
    last = {
        path.parent.parent.name: path
        for path in files(root)
        if device in (None, path.parent.parent.name)
    }
    found = {}
    for name, path in last.items():
        commit = json.loads(path.read_text()).get("commit_info", {}).get("id", "")[:7]
        found[f"{name}, {path.parent.name}, {commit}".rstrip(", ")] = read(path)
    return found
