"""The results as one page of HTML that needs nothing beside it."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from markupsafe import Markup

from attnverify.bench.report.figures import Style, assign_styles
from attnverify.bench.report.plots import plots
from attnverify.bench.report.results import Record, Run
from attnverify.bench.report.tables import TITLES, groups, rows
from attnverify.report.html import document

render = partial(document.render, folder=Path(__file__).parent / "templates")

Bodies = dict[str, Markup]
"""What stands under each heading; an empty one is left out."""

More = Callable[[int, Run, dict[str, Style]], Bodies]
"""What somebody has to say of the run of that number, in the styles of the page."""


def report_page(
    runs: Sequence[Run], more: More = lambda *_: {}, last: Sequence[document.Section] = ()
) -> str:
    """
    Render the last run of each device: what `more` says of it, the plots, the times, the machine;
    and the sections that come last.
    """
    styles = assign_styles(record for run in runs for record in run.records)
    parts = [
        document.Section(
            f"{name.lower().replace(' ', '-')}-{number}",
            name if len(runs) == 1 else f"{name}: {run.device}",
            body,
        )
        for number, run in enumerate(runs)
        for name, body in (more(number, run, styles) | describe_run(number, run, styles)).items()
        if body
    ]
    lead = render("lead.html", runs=runs)
    return document.render_page("Benchmarks of attention", lead, [*parts, *last])


def describe_run(number: int, run: Run, styles: dict[str, Style]) -> Bodies:
    """Render the plots and the times of a run, and the machine that it was on."""
    times = [(name, rows(group)) for name, group in groups(run.records)]
    return {
        "Plots": place_plots(plots(run.records, styles), f"plot{number}"),
        "Times": render(
            "times.html", identity=f"case-{number}", titles=TITLES, cases=times, styles=styles
        ),
        "Machine": render("machine.html", lines=describe_machine(run.records)),
    }


def place_plots(drawn: dict[str, str], name: str) -> Markup:
    """Render each plot over its caption; `name` is these plots' own on the whole page."""
    unique = [
        (caption, Markup(with_unique_ids(svg, f"{name}-{number}", caption)))
        for number, (caption, svg) in enumerate(drawn.items())
    ]
    return render("plots.html", plots=unique) if unique else Markup("")


def with_unique_ids(svg: str, name: str, caption: str) -> str:
    """Names inside a plot are its own: another plot on the page may use the same."""
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    named = Markup('<svg class="plot" role="img" aria-label="{}" ').format(caption)
    return re.sub(r"url\(#", f"url(#{name}-", svg).replace("<svg ", named, 1)


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
