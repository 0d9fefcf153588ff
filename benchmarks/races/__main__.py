"""
The recorded races of our kernels, with our goals:

    python -m benchmarks.races [--device NAME] [-o bench.html]

How times changed between runs is shown by ``pytest-benchmark compare FILES --group-by=fullname``.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from markupsafe import Markup

from attnverify.bench.report.figures import Style
from attnverify.bench.report.html_page import Bodies, place_plots, report
from attnverify.bench.report.results import Record, Run
from attnverify.report.html import document
from benchmarks.races.goals import closing_lines, measured_words, outcomes
from benchmarks.races.growth import draw_growth, fit_growth
from benchmarks.races.issue_slots import TITLES, Cells, describe_issue_slots, read_issue_slots

render = partial(document.render, folder=Path(__file__).parent / "templates")

GROWTH = {
    "Time over the length N": "seconds",
    "Peak extra memory over the length N": "peak_extra_bytes",
}


def main(arguments: list[str] | None = None) -> int:
    """Show the last run of each device, its goals, and issue slots; 2 where there is none."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.races", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), metavar="DIR")
    parser.add_argument("--device", metavar="NAME", help="one device alone, by its folder's name")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write a page, too")
    given = parser.parse_args(arguments)
    slots = read_issue_slots(given.results)
    status = report(
        given.results,
        given.device,
        given.output,
        lambda run: closing_lines(run.records, run.kind),
        describe_goals,
        issue_slot_sections(slots),
    )
    print("\n".join(describe_issue_slots(slots)))
    return status


def describe_goals(number: int, run: Run, styles: dict[str, Style]) -> Bodies:
    """Render the goals of a run's device, and how cost grows."""
    drawn = {caption: draw_growth(what, run.records, styles) for caption, what in GROWTH.items()}
    shown = {caption: svg for caption, svg in drawn.items() if svg}
    return {
        "Goals": render_goals(number, run.kind, run.records),
        "Growth": place_plots(shown, f"growth{number}"),
    }


def render_goals(number: int, device: str, records: list[Record]) -> Markup:
    """Render the table of goals of this device, and how time and memory grow."""
    lines = [
        (
            one.goal.what,
            one.goal.against,
            format_limits(one.goal.floor, one.goal.goal),
            measured_words(one),
        )
        for one in outcomes(records, device)
    ]
    grown = [growth.cells for growth in fit_growth(records)]
    if not (lines or grown):
        return Markup("")
    return render("goals.html", number=number, rows=lines, growth=grown)


def format_limits(floor: float, goal: float) -> str:
    return f"{floor:g}, {goal:g}" if goal != float("inf") else f"{floor:g}, views"


def issue_slot_sections(slots: Sequence[Cells]) -> list[document.Section]:
    """Render what the profiler counted, where it was run."""
    if not slots:
        return []
    table = render("issue_slots.html", titles=TITLES, rows=slots)
    return [document.Section("issue-slots", "Issue slots", table)]


if __name__ == "__main__":
    raise SystemExit(main())
