"""
The plots as SVG text: the roofline, accuracy against speed, each contestant in one colour
throughout.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from attnverify.bench.report.figures import (
    INK,
    Style,
    extract_svg,
    name_contestants,
    open_figure,
    write_ticks,
)
from attnverify.bench.report.results import Record, correct
from attnverify.bench.report.tables import groups

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
