"""How every picture looks: the colours of a light or a dark page, and a matrix with its numbers."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy import ndarray

THEMES = {
    "light": {
        "ink": "#1f2328",
        "soft": "#6b7280",
        "paper": "#ffffff",
        "none": "#eceff3",
        "wrong": "#c4201d",
        "right": "#0b63c5",
    },
    "dark": {
        "ink": "#e6e8eb",
        "soft": "#9aa3ad",
        "paper": "#131416",
        "none": "#2a2e34",
        "wrong": "#ff7b72",
        "right": "#6cb2ff",
    },
}
ROWS = {
    "light": ["#b9dcff", "#ffd9a8", "#bfe8c4", "#f4c4dc", "#d9ccf5", "#f3eaa4"],
    "dark": ["#1c4a75", "#72491a", "#225c2c", "#6d2a4c", "#4a3a7d", "#5f5716"],
}
MAPS = {"light": "Blues", "dark": "Blues_r"}

now = {"theme": "light"}


@contextmanager
def drawn(theme: str) -> Iterator[None]:
    """Draw what follows for a light or a dark page."""
    colours = THEMES[theme]
    now["theme"] = theme
    style = {
        key: colours["ink"]
        for key in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    }
    style |= {
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "font.size": 10,
        "svg.hashsalt": "book",
    }
    style |= {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10.5,
        "legend.frameon": False,
    }
    mpl.rcParams.update(style)
    yield


def colour(name: str) -> str:
    return THEMES[now["theme"]][name]


def row_colour(row: int) -> str:
    """The colour that a row keeps wherever its numbers go."""
    colours = ROWS[now["theme"]]
    return colours[row % len(colours)]


def panels(count: int, width: float | Sequence[float] = 2.7, height: float = 2.5) -> list[Axes]:
    """As many axes, each a drawing of its own, for a page puts them beside or below each other."""
    sizes = [(float(each), height) for each in np.broadcast_to(width, count)]
    return [plt.subplots(figsize=size, layout="constrained")[1] for size in sizes]


def text_of(x: Any) -> str:
    """A number in few characters."""
    if isinstance(x, bool | np.bool_):
        return "✓" if x else ""
    if np.isnan(x):
        return "nan"
    if np.isinf(x):
        return "∞" if x > 0 else "-∞"
    if float(x).is_integer() and abs(x) < 1e4:
        return f"{x:.0f}"
    return (
        f"{x:.2g}"
        if 1e-3 <= abs(x) < 1e4
        else re.sub(r"e([+-])0*", r"e\1", f"{x:.0e}").replace("+", "")
    )


def matrix(
    axes: Axes, x: ndarray, title: str = "", rows: ndarray | None = None, shade: bool = True,
        marked: ndarray | None = None,
    row: str = "query i", column: str = "key j",
) -> None:  # fmt: skip
    """
    A matrix with its numbers written in it.

    rows    for each element the row that it came from (negative: padding), which gives its colour;
            otherwise its size does
    marked  elements with a frame: those that are wrong
    A masked array shows nothing where it is masked.
    """
    absent = np.atleast_2d(np.ma.getmaskarray(x))
    x = np.atleast_2d(np.where(absent, np.nan, x) if absent.any() else np.asarray(x))
    N, M = x.shape
    size = {1: 9.0, 2: 9.0, 3: 9.0, 4: 9.0, 5: 8.0}.get(
        max(len(text_of(number)) for number in x.ravel()), 7.0
    )
    fills = row_fills(rows) if rows is not None else size_fills(x, shade)
    for i in range(N):
        for j in range(M):
            face, ink = fills[i][j]
            axes.add_patch(
                Rectangle((j, i), 1, 1, facecolor=face, edgecolor=colour("paper"), linewidth=1.5)
            )
            axes.text(
                j + 0.5,
                i + 0.5,
                "" if absent[i, j] else text_of(x[i, j]),
                ha="center",
                va="center",
                color=ink,
                fontsize=size,
            )
            if marked is not None and marked[i, j]:
                axes.add_patch(
                    Rectangle(
                        (j + 0.05, i + 0.05),
                        0.9,
                        0.9,
                        facecolor="none",
                        edgecolor=colour("wrong"),
                        linewidth=2,
                        zorder=3,
                    )
                )
    axes.set(xlim=(0, M), ylim=(N, 0), aspect="equal", title=title, xlabel=column, ylabel=row)
    axes.set_xticks(np.arange(M) + 0.5, [str(j) for j in range(M)])
    axes.set_yticks(np.arange(N) + 0.5, [str(i) for i in range(N)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def row_fills(rows: ndarray) -> list[list[tuple[str, str]]]:
    return [
        [(row_colour(int(r)) if r >= 0 else colour("none"), colour("ink")) for r in line]
        for line in np.atleast_2d(rows)
    ]


def size_fills(x: ndarray, shade: bool) -> list[list[tuple[Any, str]]]:
    """A shade for each finite number, grey for the others, and an ink that is readable on it."""
    wide = x.astype(float)
    finite = np.where(np.isfinite(wide), wide, 0.0)
    low, high = finite.min(), finite.max()
    part = (finite - low) / (high - low if high > low else 1.0)
    scale = mpl.colormaps[MAPS[now["theme"]]]
    fills: list[list[tuple[Any, str]]] = []
    for i in range(x.shape[0]):
        line: list[tuple[Any, str]] = []
        for j in range(x.shape[1]):
            plain = not shade or not np.isfinite(wide[i, j])
            face = (
                mpl.colors.to_rgb(colour("none"))
                if plain
                else scale(0.08 + 0.55 * part[i, j])[:3]
                if now["theme"] == "light"
                else scale(0.02 + 0.5 * part[i, j])[:3]
            )
            line.append((face, "#101418" if luminance(face) > 0.35 else "#ffffff"))
        fills.append(line)
    return fills


def luminance(face: Any) -> float:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in face)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
