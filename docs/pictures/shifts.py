"""Where each row of a shift goes."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy import ndarray

from pictures import style


def moved(shift: Callable[[ndarray], ndarray], x: ndarray) -> None:
    """
    The matrix before, each row moved as far as it goes past the frame of the result, and the
    result, whose gaps are filled from the rows beside; a number keeps the colour of its row.
    """
    N, M = x.shape
    tags = np.arange(1.0, N * M + 1).reshape(N, M)
    after = shift(tags)
    rows = np.where(after > 0, (after - 1) // M, -1)
    steps = [step_of(after[i], tags[i]) for i in range(N)]
    sizes = [M, M + max(steps) - min(0, *steps), M]
    left, middle, right = style.panels(
        3, width=[0.7 + 0.4 * size for size in sizes], height=0.9 + 0.4 * N
    )
    style.matrix(left, x, "before", rows=(tags - 1) // M, column="column j", row="row i")
    stagger(middle, x, steps)
    style.matrix(right, shift(x), "after", rows=rows, column="column j", row="")


def step_of(after: ndarray, own: ndarray) -> int:
    """How many columns a row moves to the right, read off the first of its numbers that is left."""
    kept = [(k, j) for k, tag in enumerate(after) for j in np.flatnonzero(own == tag)]
    return int(kept[0][0] - kept[0][1]) if kept else len(own)


def stagger(axes: Axes, x: ndarray, steps: list[int]) -> None:
    """Each row at its step; what falls out of the frame is faint."""
    N, M = x.shape
    for i, step in enumerate(steps):
        for j in range(M):
            place, faint = j + step, 1.0 if 0 <= j + step < M else 0.3
            look = {"facecolor": style.row_colour(i), "edgecolor": style.colour("paper")}
            axes.add_patch(Rectangle((place, i), 1, 1, alpha=faint, linewidth=1.5, **look))
            where = {"ha": "center", "va": "center", "fontsize": 9.0, "alpha": faint}
            axes.text(place + 0.5, i + 0.5, style.text_of(x[i, j]), **where)
    frame = {"facecolor": "none", "edgecolor": style.colour("ink"), "linewidth": 2}
    axes.add_patch(Rectangle((0, 0), M, N, zorder=4, **frame))
    ends = (min(0, *steps) - 0.1, M + max(0, *steps) + 0.1)
    axes.set(xlim=ends, ylim=(N + 0.1, -0.1), aspect="equal", title="its rows moved")
    axes.set(xlabel=" ", ylabel=" ")  # the room that the other two have for theirs
    axes.tick_params(length=0, labelcolor="none")
    axes.spines[:].set_visible(False)
