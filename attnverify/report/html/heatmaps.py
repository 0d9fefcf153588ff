"""
Heat maps: the picture of a failure (attnverify/failures/evidence.py) as inline SVG, one path for
each colour, with its numbers beside it.
"""

import json
from math import inf, isfinite, isnan
from typing import Any

from attnverify.report.html.document import header_cells, table
from attnverify.report.html.elements import Markup, element, join

STEPS = 5
"""Colours on either side of zero."""

EDGES = (0.1, 0.5, 1.0, 2.0, 10.0, 100.0)
"""Where the colours of error / bound change; beyond 1 an element is out of bound."""

LISTED = 6
"""As many elements are told in numbers below the maps, the worst first."""

Plane = list[list[float]]


def heatmaps(picture: dict[str, Any], identity: str) -> Markup:
    """
    Expected, actual, error / bound side by side, the worst element framed, and the worst elements
    in a table.
    """
    return element(
        "figure",
        maps(picture),
        worst_table(picture, identity),
        element("figcaption", words(picture)),
    )


def in_numbers(picture: dict[str, Any], identity: str) -> Markup:
    """The same without the maps, which of a single element show nothing."""
    return element("figure", worst_table(picture, identity), element("figcaption", words(picture)))


def maps(picture: dict[str, Any]) -> Markup:
    expected, actual, ratio = (numbers(picture[name]) for name in ("expected", "actual", "ratio"))
    scale = (
        max((abs(x) for line in expected for x in line if isfinite(x)), default=0.0)
        or largest(actual)
        or 1.0
    )
    three = [
        render_map(
            f"Expected, {span(scale)}",
            "value",
            [[signed(x, scale) for x in line] for line in expected],
            picture,
        ),
        render_map(
            "Actual, same colours",
            "value",
            [[signed(x, scale) for x in line] for line in actual],
            picture,
        ),
        render_map(
            "Error / bound: green to 1, red and dotted beyond",
            "ratio",
            [[level(x) for x in line] for line in ratio],
            picture,
        ),
    ]
    data = {name: picture[name] for name in ("axes", "origin", "expected", "actual", "ratio")}
    shown = element(
        "div", three, class_="maps", data_numbers=json.dumps(data, separators=(",", ":"))
    )
    return join(
        [
            element("p", axis_caption(picture), class_="sides"),
            shown,
            element("output", "", class_="readout"),
        ]
    )


def numbers(plane: list[list[Any]]) -> Plane:
    return [[float(x) for x in line] for line in plane]


def largest(plane: Plane) -> float:
    return max((abs(x) for line in plane for x in line if isfinite(x)), default=0.0)


def span(scale: float) -> str:
    return f"colours from {-scale:.3g} to {scale:.3g}"


def signed(x: float, scale: float) -> str:
    """
    The colour of a value: n5 ... z0 ... p5; NaN and what is no finite number have one of their own.
    """
    if isnan(x):
        return "nan"
    step = max(-STEPS, min(STEPS, round(STEPS * max(-scale, min(scale, x)) / scale)))
    return f"{'n' if step < 0 else 'p' if step > 0 else 'z'}{abs(step)}"


def level(ratio: float) -> str:
    return (
        "r" + str(sum(ratio > edge * (1 + 1e-9) for edge in EDGES))
        if not isnan(ratio)
        else f"r{len(EDGES)}"
    )


def render_map(title: str, kind: str, colours: list[list[str]], picture: dict[str, Any]) -> Markup:
    """One map: a unit square for each element, row by row from above."""
    rows, columns = len(colours), len(colours[0])
    places: dict[str, list[tuple[int, int]]] = {}
    for i, line in enumerate(colours):
        for j, colour in enumerate(line):
            places.setdefault(colour, []).append((i, j))
    squares = [
        element("path", class_=colour, d="".join(f"M{j} {i}h1v1h-1z" for i, j in at))
        for colour, at in sorted(places.items())
    ]
    out = [
        (i, j)
        for i, line in enumerate(picture["within"])
        for j, within in enumerate(line)
        if not within
    ]
    dots = (
        element(
            "path", class_="out", d="".join(f"M{j + 0.4:g} {i + 0.4:g}h.2v.2h-.2z" for i, j in out)
        )
        if kind == "ratio"
        else None
    )
    crossed = (
        element(
            "path", class_="cross", d="".join(f"M{j} {i}l1 1m0 -1l-1 1" for i, j in places["nan"])
        )
        if "nan" in places
        else None
    )
    label, longest = f"{title}. {words(picture)}", max(rows, columns)
    unit = 2.2 if longest <= 8 else 1.1 if longest <= 16 else 0.75
    size = f"--columns:{columns};--rows:{rows};--unit:{unit}rem"
    art = element(
        "svg",
        squares,
        dots,
        crossed,
        frame(picture),
        role="img",
        aria_label=label,
        viewBox=f"0 0 {columns} {rows}",
        style=size,
    )
    return element("div", element("p", title, class_="title"), art, class_="map")


def frame(picture: dict[str, Any]) -> Markup:
    """The frame around the worst element, which also says by its attributes where that is."""
    row, column = place(picture)
    (first, left) = picture["origin"]
    return element(
        "rect",
        class_="worst",
        x=column - left,
        y=row - first,
        width=1,
        height=1,
        data_row=row,
        data_column=column,
        data_index=index(picture),
    )


def place(picture: dict[str, Any]) -> tuple[int, int]:
    """The row and the column of the worst element in its slice."""
    row, column = [0, 0, *picture["index"]][-2:]
    return row, column


def index(picture: dict[str, Any]) -> str:
    return f"({', '.join(map(str, picture['index']))}{',' if len(picture['index']) == 1 else ''})"


def axis_caption(picture: dict[str, Any]) -> str:
    """What lies along the sides of the maps."""
    (first, left), extents = picture["origin"], (len(picture["actual"]), len(picture["actual"][0]))
    names = [axis or name for axis, name in zip(picture["axes"], ("row", "column"), strict=True)]
    down, right = (
        f"{name} {at} to {at + extent - 1}"
        for name, at, extent in zip(names, (first, left), extents, strict=True)
    )
    return f"{down} from above, {right} from the left"


def words(picture: dict[str, Any]) -> str:
    """
    The maps in words: which slice of which output, how much of it is wrong, and its worst element.
    """
    lead = "".join(f"{i}, " for i in picture["index"][:-2])
    axes = [axis or name for axis, name in zip(picture["axes"], ("rows", "columns"), strict=True)]
    (row, column), (first, left) = place(picture), picture["origin"]
    got, law, share = (
        picture[name][row - first][column - left] for name in ("actual", "expected", "ratio")
    )
    shape = f"({', '.join(map(str, picture['shape']))})"
    part = (
        f"{picture['path']} [{lead}{axes[0]}, {axes[1]}] of shape {shape}"
        if picture["shape"]
        else f"{picture['path']}, a single number"
    )
    rows, columns = len(picture["actual"]), len(picture["actual"][0])
    cut = (
        f", {axes[0]} {first} to {first + rows - 1}, {axes[1]} {left} to {left + columns - 1}"
        if part_of(picture)
        else ""
    )
    wrong = f"{picture['wrong']} of {picture['total']} elements out of bound"
    return (
        f"{part}{cut}: {wrong}, the worst at {index(picture)}: got {format_number(got)}, law "
        f"{format_number(law)}, {budget(share)}."
    )


def part_of(picture: dict[str, Any]) -> bool:
    """Whether a window of the slice is shown and not the whole of it."""
    rows, columns = [1, 1, *picture["shape"]][-2:]
    return bool((rows, columns) != (len(picture["actual"]), len(picture["actual"][0])))


def format_number(x: Any) -> str:
    return f"{float(x):.7g}"


def budget(share: Any) -> str:
    """``12x`` of the bound; where the law is exact, or NaN is at stake, no number says how much."""
    return f"{float(share):.3g}x of the bound" if float(share) < inf else "not the law's bits"


def worst_table(picture: dict[str, Any], identity: str) -> Markup:
    """The worst elements of the window in numbers, from the worst downwards."""
    (first, left), worst, ratio = picture["origin"], place(picture), numbers(picture["ratio"])
    order = [(i, j) for i, line in enumerate(ratio) for j in range(len(line))]
    order.sort(
        key=lambda at: (
            (at[0] + first, at[1] + left) != worst,
            -ratio[at[0]][at[1]] if not isnan(ratio[at[0]][at[1]]) else -inf,
        )
    )
    rows = []
    for i, j in [at for at in order if not picture["within"][at[0]][at[1]]][:LISTED]:
        at = [*picture["index"][:-2], i + first, j + left][-max(len(picture["shape"]), 1) :]
        name = index({"index": at if picture["shape"] else []})
        mark = join(["\N{BULLSEYE} ", name, " worst"]) if (i + first, j + left) == worst else name
        cells = [
            element("td", format_number(picture[name][i][j])) for name in ("actual", "expected")
        ]
        rows.append(
            element(
                "tr",
                element("th", mark, scope="row"),
                *cells,
                element("td", budget(picture["ratio"][i][j])),
            )
        )
    return table(
        "The worst elements",
        header_cells("Element", "Actual", "Expected", "Error"),
        rows,
        f"{identity}-worst",
    )
