"""
How cost grows with the length: exponents of time and memory, fitted where the length doubles, and
the curves as SVG text.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import log
from statistics import linear_regression
from typing import Any

from attnverify.bench.report.figures import (
    Style,
    extract_svg,
    name_contestants,
    open_figure,
    write_ticks,
)
from attnverify.bench.report.results import Record, correct
from attnverify.bench.report.tables import size, time


def curves(records: list[Record]) -> dict[tuple[str, str], list[Record]]:
    """Collect the growth cases of each operation and contestant, by length."""
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record["case"].startswith("growth ") and correct(record):
            found[record["operation"], record["label"]].append(record)
    return {
        name: sorted(curve, key=lambda record: record["sizes"]["N"])
        for name, curve in found.items()
    }


def exponent(points: list[tuple[float, float]]) -> float | None:
    """
    Compute the slope of the logarithms by least squares; None for fewer than three points or one
    that is not positive.
    """
    if len(points) < 3 or min(min(point) for point in points) <= 0:
        return None
    xs, ys = ([log(point[axis]) for point in points] for axis in (0, 1))
    return linear_regression(xs, ys).slope


@dataclass(frozen=True)
class Growth:
    """The exponents of one contestant in one operation; None where there is none to fit."""

    operation: str
    label: str
    time: float
    memory: float | None
    lengths: tuple[int, int]

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table: operation, contestant, time, memory, lengths."""
        memory = "not measured" if self.memory is None else f"N^{self.memory:.2f}"
        first, last = self.lengths
        return self.operation, self.label, f"N^{self.time:.2f}", memory, f"{first} to {last}"


def fit_growth(records: list[Record]) -> list[Growth]:
    """Fit the exponents of all curves of which the time can be fitted."""
    found = []
    for (operation, label), curve in curves(records).items():
        lengths = [record["sizes"]["N"] for record in curve]
        times = [record["seconds"]["median"] for record in curve]
        memories = [record["peak_extra_bytes"] or 0 for record in curve]
        slope = exponent(list(zip(lengths, times, strict=True)))
        memory = exponent(list(zip(lengths, memories, strict=True)))
        if slope is not None:
            found.append(Growth(operation, label, slope, memory, (lengths[0], lengths[-1])))
    return found


def exponents(records: list[Record]) -> list[str]:
    """List ``alibi_attention, torch_impl: time N^2.01, memory N^1.02 from N = 512 to 4096``"""
    return [
        f"{operation}, {label}: time {spent}, memory {memory} from N = {lengths}"
        for operation, label, spent, memory, lengths in (one.cells for one in fit_growth(records))
    ]


def draw_growth(what: str, records: list[Record], styles: dict[str, Style]) -> str | None:
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
            _place_ticks(axis.xaxis, lengths, map(str, lengths))
            write_ticks(axis.yaxis, time if what == "seconds" else lambda value: size(round(value)))
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


def _place_ticks(axis: Any, places: Sequence[float], words: Iterable[str]) -> None:
    """Put the ticks of an axis at these places alone, each with its words."""
    axis.set_ticks(list(places), list(words))
    axis.set_minor_locator(import_module("matplotlib.ticker").NullLocator())
