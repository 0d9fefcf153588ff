"""Matrices side by side: what goes in, what comes out, what is wrong with it."""

from typing import Any

import numpy as np

from pictures import style


def side_by_side(row: str = "query i", column: str = "key j", **named: Any) -> None:
    """Each matrix under its name; ``_`` in a name is a space."""
    widest = max(np.atleast_2d(x).shape[1] for x in named.values())
    for axes, (name, x) in zip(
        style.panels(len(named), width=1.0 + 0.42 * widest), named.items(), strict=True
    ):
        style.matrix(axes, x, name.replace("_", " "), row=row, column=column)
