"""
What every plot of a page shares: one colour and mark a contestant, its ink and its ticks. By
matplotlib, when a plot is asked for.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from io import StringIO
from typing import Any

from attnverify.bench.report.results import Record

COLOURS = (
    "#3a7fd5", "#d9691a", "#1f9a6e", "#c8453f", "#a05fd0", "#8a7a1c",
    "#1b95ac", "#d2559c", "#7d7f86", "#5f9a2b", "#a3683f", "#6a6fdc",
)  # fmt: skip
"""Twelve that are told apart on a white ground and on a dark one."""

MARKERS = "osD^vP*Xh<>p"

INK = "#010203"
"""Stands for the colour of the page's text, whatever that is where the page is read."""

Style = dict[str, str]
"""How a contestant is drawn: its colour and its marker, as matplotlib takes them."""


def assign_styles(records: Iterable[Record]) -> dict[str, Style]:
    """Give each contestant of the records its colour and its marker, by its name alone."""
    labels = sorted({record["label"] for record in records if "label" in record})
    return {
        label: {
            "color": COLOURS[number % len(COLOURS)],
            "marker": MARKERS[(number + number // len(COLOURS)) % len(MARKERS)],
        }
        for number, label in enumerate(labels)
    }


@contextmanager
def open_figure(count: int = 1) -> Iterator[tuple[Any, list[Any], StringIO]]:
    """
    Open a figure of so many axes below each other, as narrow as a phone; its SVG is in the text
    afterwards, the same bytes for the same figures.
    """
    matplotlib = import_module("matplotlib")
    matplotlib.use("svg")
    pyplot, text = import_module("matplotlib.pyplot"), StringIO()
    settings = {"svg.hashsalt": "verify", "svg.fonttype": "path", "font.size": 9}
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    bare = {"axes.facecolor": "none", "legend.frameon": False, "axes.titlesize": 10}
    with matplotlib.rc_context(settings | bare | dict.fromkeys(inked, INK)):
        drawn, axes = pyplot.subplots(
            count, 1, figsize=(4.6, 3.2 * count + 1), squeeze=False, layout="constrained"
        )
        yield drawn, list(axes[:, 0]), text
        drawn.savefig(
            text, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
        pyplot.close(drawn)


def extract_svg(text: StringIO) -> str:
    """Cut out the svg element alone, its ink that of the page around it."""
    whole = text.getvalue()
    return whole[whole.index("<svg") :].replace(INK, "currentColor")


def name_contestants(figure: Any, axes: Iterable[Any]) -> None:
    """Write who is who below the axes, each contestant once, where it covers nothing."""
    known = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    labels = sorted(known)
    figure.legend(
        [known[label] for label in labels], labels, loc="outside lower center", ncols=3, fontsize=8
    )


def write_ticks(axis: Any, format_value: Callable[[float], str]) -> None:
    """Label the decades of a logarithmic axis, and 2 and 5 between them where they are few."""
    ticker = import_module("matplotlib.ticker")
    low, high = axis.get_view_interval()
    between = (1, 2, 5) if high < 100 * low else (1,)
    axis.set_major_locator(ticker.LogLocator(10, between))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: format_value(value)))
    axis.set_minor_formatter(ticker.NullFormatter())
