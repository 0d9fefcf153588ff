"""
Places: where in an array something is, in words, axis by axis.
"""

import numpy as np
from numpy import ndarray

from attnverify.diagnosis import sentences as say

NAMES = {
    **{"B": "batch element", "H": "head", "N": "row", "M": "key", "S": "position", "P": "position"},
    **dict.fromkeys("EDF", "column"),
}


def describe_indices(wrong: ndarray, axes: str = "") -> str:
    """
    Where a boolean array is True along its axes: ``: from key 64 of 96 on, in head 3 alone``;
    nothing where it is everywhere.
    """
    names = axes or ("BHNM" if wrong.ndim == 4 else "BNM")
    told = []
    for axis, letter in list(enumerate(names))[::-1]:
        there = np.asarray(
            wrong.any(axis=tuple(other for other in range(wrong.ndim) if other != axis))
        )
        words = describe_axis(there, NAMES.get(letter, say.INDEX_OF_AXIS.format(axis=axis)))
        told += [words] if words else []
    return say.PLACE.format(places=", ".join(told)) if told else ""


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
    template = say.SOME_AND_MORE if len(index) > 4 else say.SOME
    return template.format(name=name, indices=", ".join(map(str, index[:4])))
