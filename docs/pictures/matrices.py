"""Matrices side by side: what goes in, what comes out, what is wrong with it."""

from typing import Any

import numpy as np

from pictures import style


def side_by_side(row: str = "query i", column: str = "key j", **named: Any) -> None:
    """
    Each matrix under its name; ``_`` in a name is a space. Whose columns are something else is a
    pair of the matrix and their name.
    """
    pairs = [x if isinstance(x, tuple) else (x, column) for x in named.values()]
    widest = max(np.atleast_2d(x).shape[1] for x, _ in pairs)
    drawn = style.panels(len(named), width=1.0 + 0.42 * widest)
    for axes, name, (x, columns) in zip(drawn, named, pairs, strict=True):
        style.matrix(axes, x, name.replace("_", " "), row=row, column=columns)
