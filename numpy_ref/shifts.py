"""
Shifts by the layout of memory: pad one column, and read the same numbers with rows one shorter.
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from attnverify.contract.attention import D_SCORE, SHIFTED
from attnverify.contract.shapes import check

from .arrays import ARRAYS

__all__ = ["rel_shift", "rel_shift_grad", "shift_right", "shift_right_grad"]


def shift_right(x: Float[ndarray, "... N M"]) -> Float[ndarray, "... N M"]:
    """
    See :func:`spec.shifts.shift_right`.

    A zero column behind, two reshapes and a slice; any dtype moves as its own bits.
    """
    check(ARRAYS, SHIFTED, x)
    *lead, N, M = x.shape
    padded = np.zeros((*lead, N, M + 1), x.dtype)
    padded[..., :M] = x
    return padded.reshape(*lead, N * (M + 1))[..., : N * M].reshape(x.shape)


def rel_shift(x: Float[ndarray, "... N M"]) -> Float[ndarray, "... N M"]:
    """
    See :func:`spec.shifts.rel_shift`.

    A zero column in front, two reshapes and a slice; any dtype moves as its own bits.
    """
    check(ARRAYS, SHIFTED, x)
    *lead, N, M = x.shape
    padded = np.zeros((*lead, N, M + 1), x.dtype)
    padded[..., 1:] = x
    return padded.reshape(*lead, N * (M + 1))[..., N:].reshape(x.shape)


def shift_right_grad(
    d_output: Float[ndarray, "... N M"], x: Float[ndarray, "... N M"]
) -> tuple[Float[ndarray, "... N M"]]:
    """
    See :func:`spec.shifts.shift_right_grad`.

    The same two reshapes backwards: what was sliced off is zero, the padded column is dropped.
    """
    check(ARRAYS, SHIFTED + D_SCORE, x, d_output)
    return (unpadded(d_output, slice(None, -x.shape[-2]), slice(None, -1)),)


def rel_shift_grad(
    d_output: Float[ndarray, "... N M"], x: Float[ndarray, "... N M"]
) -> tuple[Float[ndarray, "... N M"]]:
    """
    See :func:`spec.shifts.rel_shift_grad`.

    The same two reshapes backwards: what was sliced off is zero, the padded column is dropped.
    """
    check(ARRAYS, SHIFTED + D_SCORE, x, d_output)
    return (unpadded(d_output, slice(x.shape[-2], None), slice(1, None)),)


def unpadded(d_output: ndarray, kept: slice, columns: slice) -> Float[ndarray, "... N M"]:
    """The kept stretch of N (M + 1) numbers filled with the gradient, without the padded column."""
    *lead, N, M = d_output.shape
    padded = np.zeros((*lead, N * (M + 1)), d_output.dtype)
    padded[..., kept] = d_output.reshape(*lead, N * M)
    return padded.reshape(*lead, N, M + 1)[..., columns].copy()
