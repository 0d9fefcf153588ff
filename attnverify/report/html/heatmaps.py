"""
Heat maps: what the picture of a failure (attnverify/failures/evidence.py) looks like as SVG, one
path for each colour, with its numbers beside it. The template is ``figure.html``.
"""

import json
from math import inf, isfinite, isnan
from typing import Any

STEPS = 5
"""Colours on either side of zero."""

EDGES = (0.1, 0.5, 1.0, 2.0, 10.0, 100.0)
"""Where the colours of error / bound change; beyond 1 an element is out of bound."""

LISTED = 6
"""As many elements are told in numbers below the maps, the worst first."""

Plane = list[list[float]]


def describe_picture(picture: dict[str, Any]) -> dict[str, Any]:
    """Describe the worst elements in numbers and the whole in words."""
    return {"maps": None, "worst": describe_worst(picture), "caption": describe_in_words(picture)}


def describe_maps(picture: dict[str, Any]) -> dict[str, Any]:
    """
    Describe the same with maps of expected, actual and error / bound side by side, the worst
    element framed.
    """
    expected, actual, ratio = (to_floats(picture[name]) for name in ("expected", "actual", "ratio"))
    scale = largest_magnitude(expected) or largest_magnitude(actual) or 1.0
    maps = (
        (f"Expected, colours from {-scale:.3g} to {scale:.3g}", colours_of(expected, scale)),
        ("Actual, same colours", colours_of(actual, scale)),
        (
            "Error / bound: green to 1, red and dotted beyond",
            [[colour_of_ratio(x) for x in line] for line in ratio],
        ),
    )
    found: list[dict[str, Any]] = [
        {"title": title, "paths": draw_squares(colours)} for title, colours in maps
    ]
    found[-1]["paths"] += draw_dots(picture["within"])
    data = {name: picture[name] for name in ("axes", "origin", "expected", "actual", "ratio")}
    rows, columns = len(actual), len(actual[0])
    longest = max(rows, columns)
    return describe_picture(picture) | {
        "maps": found,
        "sides": describe_sides(picture),
        "numbers": json.dumps(data, separators=(",", ":")),
        "rows": rows,
        "columns": columns,
        "unit": 2.2 if longest <= 8 else 1.1 if longest <= 16 else 0.75,
        "frame": describe_frame(picture),
    }


def to_floats(plane: list[list[Any]]) -> Plane:
    return [[float(x) for x in line] for line in plane]


def largest_magnitude(plane: Plane) -> float:
    return max((abs(x) for line in plane for x in line if isfinite(x)), default=0.0)


def colours_of(plane: Plane, scale: float) -> list[list[str]]:
    return [[colour_of_value(x, scale) for x in line] for line in plane]


def colour_of_value(x: float, scale: float) -> str:
    """
    Choose the colour of a value: n5 ... z0 ... p5; NaN and what is no finite number have one of
    their own.
    """
    if isnan(x):
        return "nan"
    step = max(-STEPS, min(STEPS, round(STEPS * max(-scale, min(scale, x)) / scale)))
    return f"{'n' if step < 0 else 'p' if step > 0 else 'z'}{abs(step)}"


def colour_of_ratio(ratio: float) -> str:
    """r0 ... r6, by the edges that lie below."""
    below = len(EDGES) if isnan(ratio) else sum(ratio > edge * (1 + 1e-9) for edge in EDGES)
    return f"r{below}"


def draw_squares(colours: list[list[str]]) -> list[tuple[str, str]]:
    """Draw a path of unit squares for each colour, and crosses where there is no number."""
    places: dict[str, list[tuple[int, int]]] = {}
    for i, line in enumerate(colours):
        for j, colour in enumerate(line):
            places.setdefault(colour, []).append((i, j))
    paths = [
        (colour, "".join(f"M{j} {i}h1v1h-1z" for i, j in at))
        for colour, at in sorted(places.items())
    ]
    if "nan" in places:
        crosses = "".join(f"M{j} {i}l1 1m0 -1l-1 1" for i, j in places["nan"])
        paths.append(("cross", crosses))
    return paths


def draw_dots(within: list[list[bool]]) -> list[tuple[str, str]]:
    """Draw a dot on each element that is out of bound."""
    out = [(i, j) for i, line in enumerate(within) for j, inside in enumerate(line) if not inside]
    return [("out", "".join(f"M{j + 0.4:g} {i + 0.4:g}h.2v.2h-.2z" for i, j in out))]


def describe_frame(picture: dict[str, Any]) -> dict[str, Any]:
    """Say where the frame around the worst element is drawn, and which element that is."""
    (row, column), (first, left) = position_of_worst(picture), picture["origin"]
    x, y = column - left, row - first
    return {"x": x, "y": y, "row": row, "column": column, "index": format_index(picture["index"])}


def position_of_worst(picture: dict[str, Any]) -> tuple[int, int]:
    """Find the row and the column of the worst element in its slice."""
    row, column = [0, 0, *picture["index"]][-2:]
    return row, column


def format_index(index: list[int]) -> str:
    return f"({', '.join(map(str, index))}{',' if len(index) == 1 else ''})"


def describe_sides(picture: dict[str, Any]) -> str:
    """Say what lies along the sides of the maps."""
    (first, left), extents = picture["origin"], (len(picture["actual"]), len(picture["actual"][0]))
    names = [axis or name for axis, name in zip(picture["axes"], ("row", "column"), strict=True)]
    down, right = (
        f"{name} {at} to {at + extent - 1}"
        for name, at, extent in zip(names, (first, left), extents, strict=True)
    )
    return f"{down} from above, {right} from the left"


def describe_in_words(picture: dict[str, Any]) -> str:
    """
    Describe the maps in words: which slice of which output, how much of it is wrong, and its worst
    element.
    """
    lead = "".join(f"{i}, " for i in picture["index"][:-2])
    axes = [axis or name for axis, name in zip(picture["axes"], ("rows", "columns"), strict=True)]
    (row, column), (first, left) = position_of_worst(picture), picture["origin"]
    got, expected, share = (
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
        if is_window(picture)
        else ""
    )
    wrong = f"{picture['wrong']} of {picture['total']} elements out of bound"
    return (
        f"{part}{cut}: {wrong}, the worst at {format_index(picture['index'])}: "
        f"got {format_number(got)}, expected {format_number(expected)}, {format_share(share)}."
    )


def is_window(picture: dict[str, Any]) -> bool:
    """Tell whether a window of the slice is shown and not the whole of it."""
    rows, columns = [1, 1, *picture["shape"]][-2:]
    return bool((rows, columns) != (len(picture["actual"]), len(picture["actual"][0])))


def format_number(x: Any) -> str:
    return f"{float(x):.7g}"


def format_share(share: Any) -> str:
    """
    Format ``12x`` of the bound; where the specification is exact, or NaN is at stake, no number
    says how much.
    """
    return f"{float(share):.3g}x of the bound" if float(share) < inf else "not the expected bits"


def describe_worst(picture: dict[str, Any]) -> list[dict[str, Any]]:
    """Describe the worst elements of the window in numbers, from the worst downwards."""
    (first, left), worst = picture["origin"], position_of_worst(picture)
    ratio = to_floats(picture["ratio"])

    def badness(at: tuple[int, int]) -> tuple[bool, float]:
        share = ratio[at[0]][at[1]]
        return (at[0] + first, at[1] + left) == worst, inf if isnan(share) else share

    wrong = [
        (i, j)
        for i, line in enumerate(picture["within"])
        for j, inside in enumerate(line)
        if not inside
    ]
    leading, rank = picture["index"][:-2], len(picture["shape"])
    return [
        {
            "index": format_index([*leading, i + first, j + left][-rank:] if rank else []),
            "is_worst": (i + first, j + left) == worst,
            "actual": format_number(picture["actual"][i][j]),
            "expected": format_number(picture["expected"][i][j]),
            "error": format_share(picture["ratio"][i][j]),
        }
        for i, j in sorted(wrong, key=badness, reverse=True)[:LISTED]
    ]
