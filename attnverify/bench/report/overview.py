"""``attnverify bench-report``: recorded results in the terminal, and as one page."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from attnverify.bench.report.html_page import More, available, report_page
from attnverify.bench.report.results import Run, not_measured, read_last_runs
from attnverify.bench.report.tables import show
from attnverify.report.html.document import Section


def report(
    root: Path,
    device: str | None,
    page: Path | None,
    lines: Callable[[Run], list[str]] = lambda run: not_measured(run.records),
    more: More = lambda *_: {},
    last: Sequence[Section] = (),
) -> int:
    """
    Show the last results of each device, with `lines` below; 2 where there are none or what shows
    them is not installed. `more` and `last` are for the page.
    """
    if missing := available():
        print(missing, file=sys.stderr)
        return 2
    found = read_last_runs(root, device)
    for run in found:
        show(f"{run.device}, {run.name}", run.records, lines(run))
    if page is not None:
        page.write_text(report_page(found, more, last), encoding="utf-8")
        print(f"\npage: {page}")
    if not found:
        print(f"no results under {root}: attnverify bench FILE --results {root}", file=sys.stderr)
    return 0 if found else 2
