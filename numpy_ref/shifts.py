"""
Shifts by the layout of memory: pad one column, and read the same numbers with rows one shorter.
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from .shapes import hold

__all__ = ["rel_shift", "shift_right"]


def shift_right(x: Float[ndarray, "... N M"]) -> Float[ndarray, "... N M"]:
    """
    See :func:`spec.shifts.shift_right`.

    A zero column behind, two reshapes and a slice; any dtype moves as its own bits.
    """
    hold(x=(x, "... N M"))
    *lead, N, M = x.shape
    padded = np.zeros((*lead, N, M + 1), x.dtype)
    padded[..., :M] = x
    return padded.reshape(*lead, N * (M + 1))[..., : N * M].reshape(x.shape)


def rel_shift(x: Float[ndarray, "... N M"]) -> Float[ndarray, "... N M"]:
    """
    See :func:`spec.shifts.rel_shift`.

    A zero column in front, two reshapes and a slice; any dtype moves as its own bits.
    """
    hold(x=(x, "... N M"))
    *lead, N, M = x.shape
    padded = np.zeros((*lead, N, M + 1), x.dtype)
    padded[..., 1:] = x
    return padded.reshape(*lead, N * (M + 1))[..., N:].reshape(x.shape)
