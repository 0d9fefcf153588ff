"""Where each row of a shift goes."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import ConnectionPatch
from numpy import ndarray

from pictures import style


def moved(shift: Callable[[ndarray], ndarray], x: ndarray) -> None:
    """
    The matrix before and after; a number keeps the colour of its row, and an arrow says where the
    row lands.
    """
    N, M = x.shape
    tags = np.arange(1.0, N * M + 1).reshape(N, M)
    after = shift(tags)
    rows = np.where(after > 0, (after - 1) // M, -1)
    left, right = style.panels(2, width=1.4 + 0.5 * M, height=0.9 + 0.5 * N)
    style.matrix(left, x, "before", rows=(tags - 1) // M, column="column j", row="row i")
    style.matrix(right, shift(x), "after", rows=rows, column="column j", row="")
    for i in range(N):
        own = np.flatnonzero(rows[i] == i)
        if len(own):
            arrow(left, right, (M, i + 0.13), (own[0] + 0.1, i + 0.13), row=i)


def arrow(
    left: Axes, right: Axes, start: tuple[float, float], end: tuple[float, float], row: int
) -> None:
    """From a row of the left matrix to where its part in the same row of the right one begins."""
    look = {
        "arrowstyle": "-|>",
        "mutation_scale": 12,
        "linewidth": 2,
        "edgecolor": style.colour("soft"),
        "facecolor": style.row_colour(row),
    }
    left.figure.add_artist(
        ConnectionPatch(start, end, "data", "data", axesA=left, axesB=right, zorder=5, **look)
    )
