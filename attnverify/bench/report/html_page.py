"""The results as one page of HTML that needs nothing beside it."""

import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from markupsafe import Markup

from attnverify.bench.report.goals import GOALS, measured_words, outcome
from attnverify.bench.report.plots import plots
from attnverify.bench.report.results import Record
from attnverify.bench.report.scaling import fit_growth
from attnverify.bench.report.tables import TITLES, groups, rows
from attnverify.report.html import document

render = partial(document.render, folder=Path(__file__).parent / "templates")


def report_page(results: dict[str, list[Record]]) -> str:
    """Render all devices with their last results, ``{"<device>, <date>": records}``."""
    sections = [
        section
        for number, (title, records) in enumerate(results.items())
        for section in device_sections(number, title, records)
    ]
    lead = render("lead.html", results=results)
    return document.render_page("Benchmarks of attention", lead, sections)


def device_sections(number: int, title: str, records: list[Record]) -> list[document.Section]:
    device = next((record["device"] for record in records if "device" in record), "cpu")
    times = [(name, rows(group)) for name, group in groups(records)]
    bodies = {
        "goals": render_goals(number, device, records),
        "plots": render("plots.html", plots=drawn_plots(records)),
        "times": render("times.html", identity=f"case-{number}", titles=TITLES, cases=times),
        "machine": render("machine.html", lines=describe_machine(records)),
    }
    return [
        document.Section(f"{name}-{number}", f"{title}: {name}", body)
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


def drawn_plots(records: list[Record]) -> list[tuple[str, Markup]]:
    """List each plot after its caption."""
    return [
        (caption, Markup(with_unique_ids(svg, str(number))))
        for number, (caption, svg) in enumerate(plots(records).items())
    ]


def with_unique_ids(svg: str, number: str) -> str:
    """Names inside a plot are its own: another plot on the page may use the same."""
    svg = re.sub(r'\bid="', f'id="plot{number}-', svg)
    svg = re.sub(r'href="#', f'href="#plot{number}-', svg)
    return re.sub(r"url\(#", f"url(#plot{number}-", svg).replace("<svg ", '<svg role="img" ', 1)


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
    clocks = sorted(
        {str(record["clocks"]["before"]) for record in records if record.get("clocks")}
    )[:1]
    return [*told, *sorted(ceilings), *clocks]


def available() -> str:
    """Say what a report needs and does not find; nothing where all is there."""
    if find_spec("matplotlib") is None:
        return "bench-report needs matplotlib: pip install '.[bench]'"
    return ""
