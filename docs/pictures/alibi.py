"""ALiBi: slopes, and what they make of a distance."""

import numpy as np
from numpy import ndarray

from attnverify.spec import causal_mask, get_slopes
from pictures import style


def slopes(counts: list[int]) -> None:
    """The slopes of several head counts, on a logarithmic axis."""
    (axes,) = style.panels(1, width=4.6, height=3.0)
    for count, marker, colour in zip(counts, "osD", ("right", "wrong", "soft"), strict=False):
        axes.plot(
            range(count),
            get_slopes(count),
            marker=marker,
            color=style.colour(colour),
            label=f"{count} heads",
            linewidth=1.2,
        )
    axes.set_yscale("log", base=2)
    axes.set(xlabel="head h", ylabel="slope")
    axes.legend()


def triangle(count: int, length: int) -> None:
    """The biased triangle of each head: what a key weighs beside the query's own, e^bias."""
    i, j = np.arange(length)[:, None], np.arange(length)
    axes = style.panels(count, width=1.6, height=1.9)
    for panel, slope in zip(axes, get_slopes(count), strict=True):
        weights = np.exp(slope * (j - i))
        shown = np.ma.array(weights, mask=~causal_mask(length, length))
        panel.imshow(shown, cmap=style.MAPS[style.now["theme"]], vmin=0, vmax=1)
        panel.set(title=f"slope 1/{1 / slope:g}", xticks=[], yticks=[])
        panel.spines[:].set_visible(False)


def heads(biases: ndarray, visible: ndarray) -> None:
    """The biases of each head; what a row does not see is grey."""
    H, N, M = biases.shape
    for h, axes in enumerate(style.panels(H, width=1.0 + 0.55 * M, height=1.0 + 0.45 * N)):
        style.matrix(
            axes, np.ma.array(biases[h], mask=~visible), f"head {h}, slope {get_slopes(H)[h]:g}"
        )
