"""
What the suite does, in one picture: a hard input, two answers, the error beside its bound, and the
verdict. The README shows it from a file:

    python -m pictures.overview docs/_static/suite.svg    # with docs/ on the path
"""

import hashlib
import inspect
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import ConnectionPatch
from numpy import ndarray

import attnverify as av
from pictures import style


def kernel(score: ndarray, mask: ndarray | None = None) -> ndarray:
    """A softmax as one often sees it: a finite number stands for "hidden"."""
    if mask is not None:
        score = np.where(mask, score, np.float32(-1e9)) if mask.dtype == bool else score + mask
    e = np.exp(score - score.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


HARD = """a row that sees no key,
a length of 1, 63 or 65,
NaN where nobody looks,
strides, large scores, ..."""


@cache
def verdict() -> str:
    """What the suite says of the kernel."""
    with TemporaryDirectory() as folder:
        try:
            av.check(kernel, "softmax", arrays="numpy", failures=folder)
        except av.CheckFailed as failure:
            found = failure.report.failed[0].as_dict()["findings"][0]
            condition, cause = " and ".join(found["condition"]), found["cause"]["words"]
            parts = (
                "5. verdict: failed",
                f"when {condition}",
                cause,
                "and the line that replays it",
            )
            return "\n\n".join(fill(part, 30) for part in parts)
    raise AssertionError("kernel: wanted a failure, got none")


def suite(narrow: bool = False) -> None:
    """
    Drawn inputs go to the specification and to the kernel; each element is held to its bound. From
    left to right, or for a narrow page from above.
    """
    N = M = 5
    score = np.random.default_rng(1).normal(size=(N, M)).round(1)
    visible = av.spec.causal_mask(N, M) & (np.arange(N) != 2)[:, None]
    expected, actual = av.spec.softmax(score, visible), kernel(np.float32(score), visible)
    bound = av.bound("softmax", {"score": score, "mask": visible})
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(actual == expected, 0.0, np.abs(actual - expected) / bound)
    panels = PANELS[narrow]
    figure, axes = plt.subplot_mosaic(panels, figsize=SIZES[narrow], layout="constrained")
    if narrow:
        figure.get_layout_engine().set(hspace=0.2)
    draw(axes["inputs"], np.ma.array(score, mask=~visible), "1. inputs, drawn to be hard")
    draw(axes["expected"], expected, "2. the specification")
    draw(axes["actual"], actual, "3. your kernel")
    draw(axes["ratio"], ratio, "4. error / derived bound", ratio > 1)
    say(axes["hard"], HARD)
    say(axes["verdict"], verdict(), "wrong")
    for start, end in ARROWS:
        connect(axes[start], axes[end], ENDS["down" if narrow else "right"])
    connect(axes["ratio"], axes["verdict"], ENDS["aside" if narrow else "below"])


PANELS = {
    False: [["inputs", "expected", "ratio"], ["hard", "actual", "verdict"]],
    True: [["inputs", "hard"], ["expected", "actual"], ["ratio", "verdict"]],
}
SIZES = {False: (9.6, 5.4), True: (5.2, 8.6)}
ARROWS = (
    ("inputs", "expected"),
    ("inputs", "actual"),
    ("expected", "ratio"),
    ("actual", "ratio"),
)
ENDS = {
    "right": ((1.02, 0.5), (-0.02, 0.5)),
    "down": ((0.5, -0.02), (0.5, 1.12)),
    "below": ((0.5, -0.02), (0.5, 0.95)),
    "aside": ((1.02, 0.83), (0.15, 0.83)),
}
"""Where an arrow begins and ends, as fractions of its two panels."""


def draw(axes: Axes, x: ndarray, title: str, marked: ndarray | None = None) -> None:
    style.matrix(axes, x, title, marked=marked, row="", column="")
    axes.set(xticks=[], yticks=[])


def say(axes: Axes, words: str, name: str = "ink") -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, words, ha="center", va="center", color=style.colour(name), fontsize=10.5)


def connect(start: Axes, end: Axes, ends: tuple[tuple[float, float], ...]) -> None:
    """An arrow from one panel to the next."""
    look = {"arrowstyle": "-|>", "mutation_scale": 14, "color": style.colour("soft")}
    fraction = {"coordsA": "axes fraction", "coordsB": "axes fraction"}
    arrow = ConnectionPatch(*ends, **fraction, axesA=start, axesB=end, **look)
    start.figure.add_artist(arrow)


def made_from() -> str:
    """Tells a file that was drawn by other code than this."""
    sources = inspect.getsource(sys.modules[__name__]) + inspect.getsource(style)
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


def save(path: Path) -> None:
    """Draw the picture of the README, on paper of its own."""
    with style.drawn("light"):
        suite()
        about = {"Description": f"made from {made_from()}", "Date": None}
        plt.savefig(path, metadata=about, facecolor=style.colour("paper"))
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n")


if __name__ == "__main__":
    save(Path(sys.argv[1]))
