"""A race in shared memory, as the PTX machine finds it: who wrote the words that others read."""

import numpy as np
from matplotlib.axes import Axes

from attnverify import ptx
from pictures import style

SHOWN = range(29, 36)
"""Threads on both sides of the border between the first two warps."""


def neighbours(without: str, with_barrier: str) -> None:
    """
    Two kernels side by side in which each thread stores a word and reads that of the next: the
    read that the machine stops at is drawn in red.
    """
    axes = style.panels(2, width=3.9, height=2.4)
    for each, text in zip(axes, (without, with_barrier), strict=True):
        draw(each, find_race(text))


def find_race(text: str) -> ptx.Finding | None:
    """What the machine says of the only kernel of a text, on 64 threads."""
    x = np.arange(64, dtype=np.float32)
    try:
        ptx.load(text)["neighbour"].launch(1, 64, (x, np.zeros_like(x)))
    except ptx.Finding as finding:
        return finding
    return None


def draw(axes: Axes, finding: ptx.Finding | None) -> None:
    caught = finding.place.thread[0] if finding and finding.place.thread else None
    for thread in SHOWN:
        wrong = thread == caught
        colour = style.colour("wrong" if wrong else "soft")
        axes.annotate(
            "",
            (thread, 0.1),
            (thread + 1, 0.9),
            arrowprops={"arrowstyle": "->", "color": colour, "lw": 2.5 if wrong else 1},
        )
    for thread in (*SHOWN, SHOWN[-1] + 1):
        for height in (0, 1):
            axes.plot(thread, height, "o", ms=11, color=style.row_colour(thread // 32))
            axes.text(thread, height, str(thread), ha="center", va="center", fontsize=6.5)
    if finding is None:
        axes.axhline(0.5, color=style.colour("right"), lw=2)
        axes.text(SHOWN[0] - 0.6, 0.56, "bar.sync", color=style.colour("right"), fontsize=8)
    title = finding.kind if finding else "no finding"
    axes.set(title=title, xlim=(28, 36.6), ylim=(-0.25, 1.25), xticks=[])
    axes.set_yticks([0, 1], ["ld.shared", "st.shared"])
    axes.spines[["left", "bottom"]].set_visible(False)
