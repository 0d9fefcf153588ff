"""Shifts as what they are: one buffer looked at with two widths."""

import cupy
from jaxtyping import Float, Shaped

from attnverify.contract.attention import D_SCORE, SHIFTED
from attnverify.contract.shapes import check

from .arrays import ARRAYS, Array

__all__ = ["rel_shift", "rel_shift_grad", "shift_right", "shift_right_grad"]


def shift_right(x: Float[Array, "... N M"]) -> Float[Array, "... N M"]:
    """
    See :func:`spec.shifts.shift_right`.

    One copy; the result is a strided view of a fresh buffer.
    """
    check(ARRAYS, SHIFTED, x)
    *lead, N, M = x.shape
    rows = cupy.get_array_module(x).zeros((*lead, N, M + 1), x.dtype)
    rows[..., :M] = x
    return rows.reshape(*lead, N * (M + 1))[..., : N * M].reshape(*lead, N, M)


def rel_shift(x: Float[Array, "... N M"]) -> Float[Array, "... N M"]:
    """
    See :func:`spec.shifts.rel_shift`.

    One copy; the result is a strided view of a fresh buffer.
    """
    check(ARRAYS, SHIFTED, x)
    *lead, N, M = x.shape
    rows = cupy.get_array_module(x).zeros((*lead, N, M + 1), x.dtype)
    rows[..., 1:] = x
    return rows.reshape(*lead, N * (M + 1))[..., N:].reshape(*lead, N, M)


def shift_right_grad(
    d_output: Float[Array, "... N M"], x: Float[Array, "... N M"]
) -> tuple[Float[Array, "... N M"]]:
    """
    See :func:`spec.shifts.shift_right_grad`.

    The gradient is copied to the front of a buffer of zeros, read with the wider rows.
    """
    check(ARRAYS, SHIFTED + D_SCORE, x, d_output)
    *lead, N, M = x.shape
    rows = cupy.get_array_module(x).zeros((*lead, N * (M + 1)), d_output.dtype)
    rows[..., : N * M] = d_output.reshape(*lead, N * M)
    return (rows.reshape(*lead, N, M + 1)[..., :M],)


def rel_shift_grad(
    d_output: Float[Array, "... N M"], x: Float[Array, "... N M"]
) -> tuple[Float[Array, "... N M"]]:
    """
    See :func:`spec.shifts.rel_shift_grad`.

    The gradient is copied to the end of a buffer of zeros, read with the wider rows.
    """
    check(ARRAYS, SHIFTED + D_SCORE, x, d_output)
    *lead, N, M = x.shape
    rows = cupy.get_array_module(x).zeros((*lead, N * (M + 1)), d_output.dtype)
    rows[..., N:] = d_output.reshape(*lead, N * M)
    return (rows.reshape(*lead, N, M + 1)[..., 1:],)


def skewed(x: Shaped[Array, "... N W"], M: int) -> Shaped[Array, "... N M"]:
    """
    A view y[i, j] = x[i, N - 1 - i + j] of a contiguous array, W >= M.

    Where that column is beyond W the view reads on in the next row, and never past the end.
    """
    *lead, N, W = x.shape
    flat = x.reshape(*lead, N * W)[..., N - 1 :]
    strides = (*flat.strides[:-1], (W - 1) * flat.strides[-1], flat.strides[-1])
    return cupy.get_array_module(x).lib.stride_tricks.as_strided(flat, (*lead, N, M), strides)


def unskewed(y: Shaped[Array, "... N M"]) -> Shaped[Array, "... N N+M-1"]:
    """
    A fresh array of which y is the skewed view, zero elsewhere: where the gradient of
    :func:`skewed` goes.
    """
    *lead, N, M = y.shape
    x = cupy.get_array_module(y).zeros((*lead, N, N + M - 1), y.dtype)
    skewed(x, M)[...] = y
    return x
