"""Functions that mutants call in the place of NumPy's."""

from typing import Any

import numpy as np


def tiled(x: Any, count: int, axis: int = 0) -> Any:
    """Repeat an axis as a whole."""
    repeats = [1] * np.ndim(x)
    repeats[axis] = count
    return np.tile(x, repeats)


def mean_but_one(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Divide by one less than there are."""
    total = np.sum(x, axis=axis, keepdims=keepdims)
    return total / (np.size(x) / max(np.size(total), 1) - 1)


def count_all(x: Any, axis: Any = None, keepdims: bool = False, **other: Any) -> Any:
    """How many a sum adds up, true or not."""
    total = np.sum(np.ones(tuple(x.shape)), axis=other.get("dim", axis), keepdims=keepdims)
    return float(total) if np.ndim(total) == 0 else total


STAND_INS = {"_tiled": tiled, "_mean_but_one": mean_but_one, "_count_all": count_all}
WORDS = {
    "_tiled(": "np.tile(",
    "_mean_but_one(": "the mean of n - 1 of (",
    "_count_all(": "the count of all of (",
}
"""How they are told."""
