"""How far apart two computations of one thing are, in roundings of their dtype."""

from typing import Any

import numpy as np
from numpy import ndarray


def count_roundings(one: Any, other: Any, terms: Any = None) -> float:
    """
    The largest difference between two arrays (or tensors on the CPU) of one shape and floating
    dtype, in units of the roundoff of the largest absolute value in ``other``, or in the ``terms``
    whose sum it is; infinity where either has NaN or infinity.
    """
    x, y = to_array(one), to_array(other)
    assert (x.shape, x.dtype) == (y.shape, y.dtype), f"{x.shape} {x.dtype}, {y.shape} {y.dtype}"
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return float("inf")
    difference = float(np.abs(x - y).max())
    largest = float(np.abs(y if terms is None else to_array(terms)).max())
    if not difference or not largest:
        return float("inf") if difference else 0.0
    return difference / largest * (2 / float(np.finfo(y.dtype).eps))


def to_array(x: Any) -> ndarray:
    return x.detach().numpy() if hasattr(x, "detach") else np.asarray(x)
