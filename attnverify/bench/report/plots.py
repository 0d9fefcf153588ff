"""
The plots as SVG text: time and memory over the length, the roofline, accuracy against speed. By
matplotlib, when asked for.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from io import StringIO
from typing import Any

from attnverify.bench.report.results import Record, correct
from attnverify.bench.report.scaling import curves
from attnverify.bench.report.tables import groups

MARKERS = "osD^vP*XhH<>"


def plots(records: list[Record]) -> dict[str, str]:
    """Draw every plot that the records have something for, by its caption."""
    made: tuple[tuple[str, Callable[[list[Record]], str | None]], ...] = (
        ("Time over the length", lambda found: over_length(found, "seconds", "seconds")),
        (
            "Peak extra memory over the length",
            lambda found: over_length(found, "peak_extra_bytes", "bytes"),
        ),
        ("Roofline: true operations a second over operations a byte", draw_rooflines),
        (
            "Accuracy against speed: the share of the error bound, and the time against the "
            "fastest correct one",
            draw_accuracy,
        ),
    )
    drawn = {caption: draw(records) for caption, draw in made}
    return {caption: svg for caption, svg in drawn.items() if svg}


@contextmanager
def figure(count: int = 1) -> Iterator[tuple[Any, list[Any], StringIO]]:
    """
    Open a figure of so many axes side by side; its SVG is in the text afterwards, the same bytes
    for the same figures.
    """
    matplotlib = import_module("matplotlib")
    matplotlib.use("svg")
    pyplot, text = import_module("matplotlib.pyplot"), StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "verify", "svg.fonttype": "path", "font.size": 9}):
        drawn, axes = pyplot.subplots(
            1, count, figsize=(5.5 * count, 4), squeeze=False, layout="constrained"
        )
        yield drawn, list(axes[0]), text
        drawn.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(drawn)


def extract_svg(text: StringIO) -> str:
    """Cut out the svg element alone, without the declarations of a file."""
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


def over_length(records: list[Record], what: str, unit: str) -> str | None:
    """Draw one curve a contestant, one pair of axes an operation."""
    found = curves(records)
    operations = sorted({operation for operation, _ in found})
    if not operations:
        return None
    with figure(len(operations)) as (_, axes, text):
        for axis, operation in zip(axes, operations, strict=True):
            for number, (label, curve) in enumerate(
                (label, curve) for (name, label), curve in found.items() if name == operation
            ):
                points = [
                    (
                        one["sizes"]["N"],
                        one[what]["median"] if what == "seconds" else one[what] or 0,
                    )
                    for one in curve
                ]
                points = [point for point in points if point[1]]
                axis.plot(
                    *zip(*points, strict=True), marker=MARKERS[number % len(MARKERS)], label=label
                ) if points else None
            axis.set(title=operation, xlabel="N", ylabel=unit, xscale="log", yscale="log")
            axis.legend(fontsize=7)
    return extract_svg(text)


def draw_rooflines(records: list[Record]) -> str | None:
    """Draw each correct record that computes, under the ceilings of its run."""
    shown = [record for record in records if correct(record) and record.get("tflops_true")]
    if not shown:
        return None
    with figure() as (_, (axis,), text):
        by_label: dict[str, list[Record]] = {}
        for record in shown:
            by_label.setdefault(record["label"], []).append(record)
        for number, (label, group) in enumerate(by_label.items()):
            points = [(record["intensity"], record["tflops_true"]) for record in group]
            axis.scatter(
                *zip(*points, strict=True), s=18, marker=MARKERS[number % len(MARKERS)], label=label
            )
        for dtype, ceilings in {record["dtype"]: record["ceilings"] for record in shown}.items():
            ridge = ceilings["flops"] / ceilings["bandwidth"]
            xs = [ridge / 100, ridge, max(ridge * 10, max(record["intensity"] for record in shown))]
            axis.plot(
                xs,
                [min(x * ceilings["bandwidth"], ceilings["flops"]) / 1e12 for x in xs],
                color="black",
                linewidth=1,
            )
            axis.annotate(
                dtype, (xs[-1], ceilings["flops"] / 1e12), ha="right", va="bottom", fontsize=7
            )
        axis.set(xlabel="operations a byte", ylabel="TFLOP/s", xscale="log", yscale="log")
        axis.legend(fontsize=7)
    return extract_svg(text)


def draw_accuracy(records: list[Record]) -> str | None:
    """Draw every contestant that was timed: what is above 1 is outside of its bound."""
    points: dict[str, list[tuple[float, float]]] = {}
    for _, group in groups(records):
        times = [record["seconds"]["median"] for record in group if correct(record)]
        for record in group:
            if record["seconds"] and times and record.get("budget"):
                points.setdefault(record["label"], []).append(
                    (record["seconds"]["median"] / min(times), min(record["budget"], 1e3))
                )
    if not points:
        return None
    with figure() as (_, (axis,), text):
        for number, (label, found) in enumerate(points.items()):
            axis.scatter(
                *zip(*found, strict=True), s=18, marker=MARKERS[number % len(MARKERS)], label=label
            )
        axis.axhline(1, color="black", linewidth=1)
        axis.set(
            xlabel="time / time of the fastest correct one",
            ylabel="worst error / bound",
            xscale="log",
            yscale="log",
        )
        axis.legend(fontsize=7)
    return extract_svg(text)
