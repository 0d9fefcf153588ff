"""
The plots as SVG text: time and memory over the length, the roofline, accuracy against speed, each
contestant in one colour throughout.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from attnverify.bench.report.figures import (
    INK,
    Style,
    assign_styles,
    extract_svg,
    name_contestants,
    open_figure,
    place_ticks,
    write_ticks,
)
from attnverify.bench.report.results import Record, correct
from attnverify.bench.report.scaling import curves
from attnverify.bench.report.tables import groups, size, time

Styles = dict[str, Style]
Draw = Callable[[list[Record], Styles], str | None]


def plots(records: list[Record], styles: Styles | None = None) -> dict[str, str]:
    """
    Draw every plot that the records have something for, by its caption. `styles` are the
    contestants' on the whole page, where it shows more than these records.
    """
    made: dict[str, Draw] = {
        "Time over the length N": partial(over_length, "seconds"),
        "Peak extra memory over the length N": partial(over_length, "peak_extra_bytes"),
        "Roofline: true operations a second over operations a byte; the line is what this machine "
        "did at its best": draw_rooflines,
        "Accuracy against speed: the share of the error bound (above the line is wrong), and the "
        "time against the fastest correct one": draw_accuracy,
    }
    known = assign_styles(records) if styles is None else styles
    drawn = {caption: draw(records, known) for caption, draw in made.items()}
    return {caption: svg for caption, svg in drawn.items() if svg}


def over_length(what: str, records: list[Record], styles: Styles) -> str | None:
    """Draw one curve a contestant, one pair of axes an operation."""
    found = curves(records)
    operations = sorted({operation for operation, _ in found})
    if not operations:
        return None
    with open_figure(len(operations)) as (figure, axes, text):
        for axis, operation in zip(axes, operations, strict=True):
            axis.set(title=operation, xlabel="length N", xscale="log", yscale="log")
            axis.set_ylabel("time" if what == "seconds" else "extra memory")
            of_it = {label: curve for (name, label), curve in found.items() if name == operation}
            for label, curve in of_it.items():
                _draw_curve(axis, what, curve, styles[label] | {"label": label})
            lengths = sorted({one["sizes"]["N"] for curve in of_it.values() for one in curve})
            place_ticks(axis.xaxis, lengths, map(str, lengths))
            write_ticks(axis.yaxis, time if what == "seconds" else _format_bytes)
        name_contestants(figure, axes)
    return extract_svg(text)


def _draw_curve(axis: Any, what: str, curve: list[Record], style: Style) -> None:
    """Draw the positive figures of a contestant; what needs no memory has no place in it."""
    found = [(one["sizes"]["N"], _figure(one, what)) for one in curve]
    points = [point for point in found if point[1]]
    if points:
        axis.plot(*zip(*points, strict=True), markersize=5, linewidth=1.5, **style)


def _figure(record: Record, what: str) -> float:
    return float(record[what]["median"] if what == "seconds" else record[what] or 0)


def _format_bytes(value: float) -> str:
    return size(round(value))


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
