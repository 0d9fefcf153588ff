"""The results as one page of HTML that needs nothing beside it."""

import re
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path

from markupsafe import Markup

from attnverify.bench.report.figures import Style, assign_styles
from attnverify.bench.report.goals import GOALS, measured_words, outcome
from attnverify.bench.report.history import SHOWN, Run, draw_history, tell_goals, tell_times
from attnverify.bench.report.issue_slots import TITLES as SLOT_TITLES
from attnverify.bench.report.issue_slots import Cells
from attnverify.bench.report.plots import plots
from attnverify.bench.report.results import Record
from attnverify.bench.report.scaling import fit_growth
from attnverify.bench.report.tables import TITLES, groups, rows
from attnverify.report.html import document

render = partial(document.render, folder=Path(__file__).parent / "templates")

HISTORY = (
    "Each contestant's time beside that of the first run shown: the geometric mean over the cases "
    "that all of them timed. What moves for everybody is the machine."
)


def report_page(devices: dict[str, list[Run]], slots: Sequence[Cells] = ()) -> str:
    """Render all devices: their last run, how it came to it, and the issue slots of a card."""
    every = [record for runs in devices.values() for run in runs for record in run.records]
    styles, figures = assign_styles(every), count()
    parts = [
        device_sections(number, runs, styles, figures, alone=len(devices) == 1)
        for number, runs in enumerate(devices.values())
    ]
    lead = render("lead.html", devices=devices)
    sections = [*chain.from_iterable(parts), *issue_slot_sections(slots)]
    return document.render_page("Benchmarks of attention", lead, sections)


def issue_slot_sections(slots: Sequence[Cells]) -> list[document.Section]:
    """Render what the profiler counted, where it was run."""
    if not slots:
        return []
    table = render("issue_slots.html", titles=SLOT_TITLES, rows=slots)
    return [document.Section("issue-slots", "Issue slots", table)]


def device_sections(
    number: int, runs: list[Run], styles: dict[str, Style], figures: "count[int]", alone: bool
) -> list[document.Section]:
    """Render what is told of one device; its name stands in the headings where it is not alone."""
    last = runs[-1].records
    times = [(name, rows(group)) for name, group in groups(last)]
    bodies = {
        "Goals": render_goals(number, runs[-1].kind, last),
        "Plots": render("plots.html", plots=place_plots(plots(last, styles), figures)),
        "Times": render(
            "times.html", identity=f"case-{number}", titles=TITLES, cases=times, styles=styles
        ),
        "History": render_history(number, runs[-SHOWN:], styles, figures),
        "Machine": render("machine.html", lines=describe_machine(last)),
    }
    return [
        document.Section(
            f"{name.lower()}-{number}", name if alone else f"{name}: {runs[-1].device}", body
        )
        for name, body in bodies.items()
    ]


def render_goals(number: int, device: str, records: list[Record]) -> Markup:
    """Render the table of goals of this device, and how time and memory grow."""
    found = [outcome(goal, records) for goal in GOALS[device]]
    lines = [
        (
            one.goal.what,
            one.goal.against,
            format_limits(one.goal.floor, one.goal.goal),
            measured_words(one),
        )
        for one in found
    ]
    grown = [growth.cells for growth in fit_growth(records)]
    return render("goals.html", number=number, rows=lines, growth=grown)


def format_limits(floor: float, goal: float) -> str:
    return f"{floor:g}, {goal:g}" if goal != float("inf") else f"{floor:g}, views"


def render_history(
    number: int, runs: list[Run], styles: dict[str, Style], figures: "count[int]"
) -> Markup:
    """Render the runs beside each other, as a plot and as tables; one run has no history."""
    drawn = draw_history(runs, styles)
    return render(
        "history.html",
        number=number,
        runs=[run.name for run in runs],
        plots=place_plots({HISTORY: drawn} if drawn else {}, figures),
        goals=tell_goals(runs),
        times=tell_times(runs),
        styles=styles,
    )


def place_plots(drawn: dict[str, str], figures: "count[int]") -> list[tuple[str, Markup]]:
    """List each plot after its caption, its names its own on the whole page."""
    return [
        (caption, Markup(with_unique_ids(svg, str(next(figures)), caption)))
        for caption, svg in drawn.items()
    ]


def with_unique_ids(svg: str, number: str, caption: str) -> str:
    """Names inside a plot are its own: another plot on the page may use the same."""
    svg = re.sub(r'\bid="', f'id="plot{number}-', svg)
    svg = re.sub(r'href="#', f'href="#plot{number}-', svg)
    named = Markup('<svg class="plot" role="img" aria-label="{}" ').format(caption)
    return re.sub(r"url\(#", f"url(#plot{number}-", svg).replace("<svg ", named, 1)


def describe_machine(records: list[Record]) -> list[str]:
    """Versions, ceilings and clocks, as the records have them."""
    told = sorted(
        {f"{record['label']}: {record['versions']}" for record in records if record.get("versions")}
    )
    ceilings = {
        f"{record['dtype']} {name}: {value:.3g} a second"
        for record in records
        for name, value in record.get("ceilings", {}).items()
    }
    clocks = (record["clocks"]["before"] for record in records if record.get("clocks"))
    before = [
        f"{name.replace('_', ' ')}: {short(value)}" for name, value in next(clocks, {}).items()
    ]
    return [*told, *sorted(ceilings), *before]


def short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def available() -> str:
    """Say what a report needs and does not find; nothing where all is there."""
    if find_spec("matplotlib") is None:
        return "bench-report needs matplotlib: pip install '.[bench]'"
    return ""
