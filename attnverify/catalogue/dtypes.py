"""
Numbers in the dtype under test: rounding to it, and what it can hold. bfloat16 is ml_dtypes' in
NumPy.
"""

from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy import ndarray


@lru_cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Find the NumPy dtype of a name; bfloat16 by ml_dtypes."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@lru_cache
def largest(name: str) -> float:
    """Give the largest finite number of a float dtype."""
    return float(ml_dtypes.finfo(numpy_dtype(name)).max)  # type: ignore[no-untyped-call]


@lru_cache
def tiny(name: str) -> float:
    """Give the smallest normal number of a float dtype."""
    return float(ml_dtypes.finfo(numpy_dtype(name)).tiny)  # type: ignore[no-untyped-call]


def round_to(x: ndarray, dtype: str) -> ndarray:
    """
    Round to the nearest numbers that the dtype holds, as float64; what is finite stays finite.
    """
    if dtype not in ("float16", "bfloat16", "float32"):
        return np.array(x, np.float64)
    top = largest(dtype)
    finite = np.where(np.isfinite(x), np.clip(x, -top, top), x)
    return finite.astype(numpy_dtype(dtype)).astype(np.float64)
