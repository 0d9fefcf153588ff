"""The memory of Transformer-XL as a window."""

from matplotlib.patches import Rectangle

from pictures import style


def window(seen: list[tuple[list[float], list[float]]]) -> None:
    """
    One line for each segment: the positions in its memory and its own, of all positions there are.
    """
    last = int(seen[-1][1][-1])
    (axes,) = style.panels(1, width=1.4 + 0.34 * last, height=0.9 + 0.5 * len(seen))
    for step, (memory, segment) in enumerate(seen):
        for position in range(1, last + 1):
            fill = (
                style.row_colour(0)
                if position in segment
                else style.row_colour(1)
                if position in memory
                else style.colour("none")
            )
            inked = "ink" if position in memory or position in segment else "soft"
            axes.add_patch(
                Rectangle(
                    (position - 0.5, step), 1, 0.86, facecolor=fill, edgecolor=style.colour("paper")
                )
            )
            axes.text(
                position,
                step + 0.43,
                str(position),
                ha="center",
                va="center",
                color=style.colour(inked),
            )
    for name, row in (("segment", 0), ("memory", 1)):
        axes.add_patch(Rectangle((-9, -9), 1, 1, facecolor=style.row_colour(row), label=name))
    axes.set(xlim=(0.4, last + 0.6), ylim=(len(seen), 0), xlabel="position", ylabel="segment")
    axes.set_yticks(
        [step + 0.43 for step in range(len(seen))], [str(step) for step in range(len(seen))]
    )
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=2)
