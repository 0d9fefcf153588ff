"""Errors beside their bounds."""

import matplotlib.pyplot as plt
import numpy as np
from numpy import ndarray

from pictures import style


def landscape(lengths: list[int], spreads: list[float], shares: ndarray) -> None:
    """
    The budget used as heights over length and spread of the scores; the bound itself is the sheet
    far above, at 1.
    """
    _, axes = plt.subplots(figsize=(4.8, 3.6), subplot_kw={"projection": "3d"})
    x, y = np.meshgrid(np.log2(lengths), np.log2(spreads), indexing="ij")
    height = np.log10(shares)
    axes.plot_surface(x, y, height, cmap="viridis", edgecolor=style.colour("paper"), linewidth=0.3)
    sheet = {"color": style.colour("wrong"), "alpha": 0.18}
    axes.plot_surface(x, y, np.zeros_like(x), **sheet)
    axes.text(x.max(), y.min(), 0.12, "the bound", color=style.colour("wrong"), ha="right")
    axes.set_xticks(np.log2(lengths), [str(length) for length in lengths])
    axes.set_yticks(np.log2(spreads), [f"{spread:g}" for spread in spreads])
    ticks = range(int(np.floor(height.min())), 1)
    axes.set_zticks(ticks, [f"{10.0**tick:g}" for tick in ticks])
    axes.set(xlabel="keys M", ylabel="spread of the scores")
    axes.set_zlabel("error / bound", labelpad=8)
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.pane.set_alpha(0.0)
        axis._axinfo["grid"]["color"] = style.colour("none")
    axes.view_init(elev=18, azim=-52)
    axes.set_box_aspect(None, zoom=1.02)


def budgets(lengths: list[int], shares: dict[str, list[float]]) -> None:
    """The budget used against the length, one line for each dtype, and the bound at 1."""
    (axes,) = style.panels(1, width=4.8, height=3.4)
    ends = sorted(shares, key=lambda name: shares[name][-1])
    for (name, values), marker in zip(shares.items(), "osD^", strict=True):
        (line,) = axes.plot(lengths, values, marker=marker, markersize=4, linewidth=1.3)
        above = 6 if ends.index(name) == len(ends) - 1 else -6 if ends.index(name) else 0
        place = {"textcoords": "offset points", "va": "center", "color": line.get_color()}
        axes.annotate(name, (lengths[-1], values[-1]), (8, above), **place)
    axes.hlines(
        1, lengths[0], lengths[-1], color=style.colour("wrong"), linestyles="--", linewidth=1
    )
    label = {"textcoords": "offset points", "color": style.colour("wrong")}
    axes.annotate("the bound", (lengths[0], 1), (0, 5), **label)
    axes.set(xlabel="keys M", ylabel="error / bound")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(lengths[0] / 1.2, lengths[-1] * 3.2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
