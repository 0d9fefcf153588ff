"""
The results as one page of HTML that needs nothing beside it.

Plots are SVG text (the roofline, accuracy against speed, each contestant in one colour throughout);
``attnverify bench-report`` shows the results in the terminal too.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from markupsafe import Markup

from attnverify.bench.report.figures import (
    INK,
    Style,
    assign_styles,
    extract_svg,
    name_contestants,
    open_figure,
    write_ticks,
)
from attnverify.bench.report.results import Record, Run, correct, not_measured, read_last_runs
from attnverify.bench.report.tables import TITLES, groups, rows, show
from attnverify.report.html import document
from attnverify.report.html.document import Section

Styles = dict[str, Style]
Draw = Callable[[list[Record], Styles], str | None]


def plots(records: list[Record], styles: Styles) -> dict[str, str]:
    """Draw every plot that the records have something for, by its caption."""
    made: dict[str, Draw] = {
        "Roofline: true operations a second over operations a byte; the line is what this machine "
        "did at its best": draw_rooflines,
        "Accuracy against speed: the share of the error bound (above the line is wrong), and the "
        "time against the fastest correct one": draw_accuracy,
    }
    drawn = {caption: draw(records, styles) for caption, draw in made.items()}
    return {caption: svg for caption, svg in drawn.items() if svg}


def draw_rooflines(records: list[Record], styles: Styles) -> str | None:
    """Draw each correct record that computes, under the ceilings of its run."""
    shown = [record for record in records if correct(record) and record.get("tflops_true")]
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for record in shown:
        points[record["label"]].append((record["intensity"], record["tflops_true"]))
    if not shown:
        return None
    with open_figure() as (figure, (axis,), text):
        axis.set(xlabel="operations a byte", ylabel="TFLOP/s", xscale="log", yscale="log")
        _scatter(axis, points, styles)
        _draw_ceilings(axis, shown)
        write_ticks(axis.xaxis, "{:g}".format)
        write_ticks(axis.yaxis, "{:g}".format)
        name_contestants(figure, [axis])
    return extract_svg(text)


def _draw_ceilings(axis: Any, shown: list[Record]) -> None:
    """Draw the roof of each dtype: memory up to the ridge, arithmetic beyond it."""
    furthest = max(record["intensity"] for record in shown)
    for dtype, ceilings in {record["dtype"]: record["ceilings"] for record in shown}.items():
        ridge = ceilings["flops"] / ceilings["bandwidth"]
        xs = [ridge / 100, ridge, max(ridge * 10, furthest)]
        roof = [min(x * ceilings["bandwidth"], ceilings["flops"]) / 1e12 for x in xs]
        axis.plot(xs, roof, color=INK, linewidth=1)
        axis.annotate(dtype, (xs[-1], roof[-1]), ha="right", va="bottom", fontsize=7)


def draw_accuracy(records: list[Record], styles: Styles) -> str | None:
    """Draw every contestant that was timed: what is above 1 is outside of its bound."""
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _, group in groups(records):
        times = [record["seconds"]["median"] for record in group if correct(record)]
        for record in group:
            if record["seconds"] and times and record.get("budget"):
                slower = record["seconds"]["median"] / min(times)
                points[record["label"]].append((slower, min(record["budget"], 1e3)))
    if not points:
        return None
    with open_figure() as (figure, (axis,), text):
        axis.set(xlabel="time / time of the fastest correct one", ylabel="worst error / bound")
        axis.set(xscale="log", yscale="log")
        _scatter(axis, points, styles)
        axis.axhline(1, color=INK, linewidth=1)
        write_ticks(axis.xaxis, "{:g}".format)
        write_ticks(axis.yaxis, "{:g}".format)
        name_contestants(figure, [axis])
    return extract_svg(text)


def _scatter(axis: Any, points: dict[str, list[tuple[float, float]]], styles: Styles) -> None:
    for label, found in points.items():
        axis.scatter(*zip(*found, strict=True), s=18, label=label, **styles[label])


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
