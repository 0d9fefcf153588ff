"""One row of scores in tiles: the running maximum, and what it does to the running sum."""

import numpy as np
from numpy import ndarray

from pictures import style


def running(scores: ndarray, width: int) -> None:
    """
    The scores of a row, tile by tile, with the maximum so far; beside them the sum of exponentials
    as it is kept, which a rise of the maximum makes smaller before the tile is added.
    """
    left, right = style.panels(2, width=[3.6, 4.6], height=2.6)
    top, total = -np.inf, 0.0
    for tile, start in enumerate(range(0, len(scores), width)):
        own = scores[start : start + width]
        new = max(top, own.max())
        kept, added = total * np.exp(top - new), np.exp(own - new).sum()
        left.bar(np.arange(start, start + len(own)), own, color=style.row_colour(tile))
        left.hlines(new, start - 0.5, start + len(own) - 0.5, color=style.colour("wrong"))
        right.bar(tile, kept, color=style.colour("soft"), label="kept, rescaled" * (tile == 0))
        right.bar(
            tile, added, bottom=kept, color=style.row_colour(tile), label="added" * (tile == 0)
        )
        top, total = new, kept + added
    left.set(xlabel="key j", ylabel="score", title="scores, and their maximum so far")
    right.set(xlabel="tile", title="the sum as it is kept", xticks=range(tile + 1))
    right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
