"""``attnverify bench-report``: the committed results in the terminal, and as one page."""

import sys
from pathlib import Path

from attnverify.bench.report.goals import closing_lines
from attnverify.bench.report.history import describe_history, read_runs
from attnverify.bench.report.html_page import available, report_page
from attnverify.bench.report.issue_slots import describe_issue_slots, read_issue_slots
from attnverify.bench.report.tables import show


def report(root: Path, device: str | None, page: Path | None) -> int:
    """
    Show the last results of each device, and what moved since the run before; 2 where there are
    none or what shows them is not installed.
    """
    if missing := available():
        print(missing, file=sys.stderr)
        return 2
    found, slots = read_runs(root, device), read_issue_slots(root)
    for name, runs in found.items():
        last = runs[-1]
        lines = [*describe_history(runs), *closing_lines(last.records, last.kind)]
        show(f"{name}, {last.name}", last.records, lines)
    if slots:
        print("\n" + "\n".join(describe_issue_slots(slots)))
    if page is not None:
        page.write_text(report_page(found, slots), encoding="utf-8")
        print(f"\npage: {page}")
    if not found:
        print(
            f"no results under {root}: pytest --benchmark-only --benchmark-record", file=sys.stderr
        )
    return 0 if found else 2
