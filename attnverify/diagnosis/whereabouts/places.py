"""
Places: where in an array something is, in words, axis by axis.
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from attnverify.diagnosis import sentences as say

NAMES = {
    **{"B": "batch element", "H": "head", "N": "row", "M": "key", "S": "position", "P": "position"},
    **{"G": "head of keys", "T": "token", "U": "token of keys", "C": "part", "J": "choice"},
    **{"Z": "page", "W": "slot"},
    **dict.fromkeys("EDF", "column"),
}


def describe_indices(wrong: ndarray, axes: str = "", others: Sequence[ndarray] = ()) -> str:
    """
    Where a boolean array is True along its axes: ``: from key 64 of 96 on, in head 3 alone``;
    nothing where it is everywhere. ``others`` are the same of other cases: a place that is not
    theirs is none of the failure's.
    """
    names = axes or ("BHNM" if wrong.ndim == 4 else "BNM")
    told = []
    for axis, letter in list(enumerate(names))[::-1]:
        there = along(wrong, axis)
        words = describe_axis(there, NAMES.get(letter, say.INDEX_OF_AXIS.format(axis=axis)))
        beside = [along(x, axis) for x in others if x.ndim == wrong.ndim and x.any()]
        if words and all(len(x) == 1 or is_like(there, x) for x in beside):
            told.append(words)
    return say.PLACE.format(places=", ".join(told)) if told else ""


def along(wrong: ndarray, axis: int) -> ndarray:
    """Which indices of an axis have something."""
    return np.asarray(wrong.any(axis=tuple(at for at in range(wrong.ndim) if at != axis)))


def is_like(there: ndarray, other: ndarray) -> bool:
    """
    Whether another case has the same part of this axis, counted from either end; where one index
    alone is wrong, one alone too.
    """
    if other.all():
        return False
    one, two = np.flatnonzero(there), np.flatnonzero(other)
    if len(one) > 1:
        both = min(len(there), len(other))
        front = np.array_equal(there[:both], other[:both])
        return front or np.array_equal(there[-both:], other[-both:])
    same = one[0] == two[0] or len(there) - one[0] == len(other) - two[0]
    return len(two) == 1 and bool(same)


def describe_axis(there: ndarray, name: str) -> str:
    """Describe the indices of one axis in words."""
    index = np.flatnonzero(there)
    size, first, last = (
        len(there),
        int(index[0]) if len(index) else 0,
        int(index[-1]) if len(index) else 0,
    )
    if size == 1 or len(index) in (0, size):
        return ""
    if len(index) == 1 and last == size - 1:
        template = say.LAST_KEY if name == "key" else say.IN_LAST
        return template.format(name=name, index=last)
    if len(index) == 1:
        template = say.ONE_KEY if name == "key" else say.IN_ONE
        return template.format(name=name, index=first)
    if len(index) == last - first + 1 and last == size - 1:
        return say.FROM.format(name=name, index=first, size=size)
    if len(index) == last - first + 1 and first == 0:
        return say.UP_TO.format(name=name, index=last, size=size)
    if period := period_of(there):
        within = ", ".join(map(str, index[index < period]))
        return say.OF_EVERY.format(name=name, indices=within, period=period)
    template = say.SOME_AND_MORE if len(index) > 4 else say.SOME
    return template.format(name=name, indices=", ".join(map(str, index[:4])))


def without_sizes(words: str) -> str:
    """
    Leave out of a place what is true of the sizes of its own case alone.

    >>> without_sizes("the gradient by x: from row 1 of 3 on, in the last head (2) alone")
    'the gradient by x: from row 1 on, in the last head alone'
    """
    return OF_ITS_CASE.sub(r"\1\2", words)


OF_ITS_CASE = re.compile(
    r"((?:from|up to) [^:;]+? \d+) of \d+\b|(in the last [^:;(]+|the last key) \(\d+\)"
)


def period_of(there: ndarray) -> int:
    """
    The least period of what is repeated, which was seen three times: a few rows of each block; 0
    where there is none.

    >>> period_of(np.arange(13) % 4 > 1), period_of(np.arange(13) > 6)
    (4, 0)
    """
    sizes = range(2, len(there) // REPEATED + 1)
    return next((k for k in sizes if np.array_equal(there[k:], there[:-k])), 0)


REPEATED = 3
"""So often a pattern is to be seen for a period."""
