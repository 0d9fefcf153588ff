"""
Shifts: two ways of moving the rows of a matrix by one more column each, by looking at its memory
with another width.

Both only move numbers: every element of the result is an element of the input or a zero, bit for
bit.
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from attnverify.contract.attention import D_SCORE, SHIFTED
from attnverify.contract.shapes import check

from .arrays import ARRAYS

__all__ = ["rel_shift", "rel_shift_grad", "shift_right", "shift_right_grad"]


def shift_right(x: Float[ndarray, "... N M"]) -> Float[ndarray, "... N M"]:
    r"""
    Row i moves i columns to the right.

    Append a column of zeros, read the N (M + 1) numbers in order, and keep the first N M of them as
    N rows of M:

    .. math:: y_{ij} = \tilde x\big[\, i M + j \,\big], \qquad \tilde x = (x_{00} \dots x_{0,M-1}\;
              0\; x_{10} \dots x_{1,M-1}\; 0 \dots)

    1. For j >= i the result is :math:`x_{i,j-i}`: the shift proper.
    2. For j < i it is what wrapped around: the zero that follows row i - 1 stands in column i - 1,
       and before it row i - 1 ends. Where a row is shorter than its index, that zero and more of
       the row before have left on the left, and what comes in is row i - 1 as far as it reaches,
       then the zero and the end of row i - 2, and so on. It is no garbage but part of the
       specification, for every N and M, and users slice it off.

    >>> shift_right(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]))
    array([[1., 2., 3.],
           [0., 4., 5.],
           [6., 0., 7.]])

    Six rows of two numbers: row 4 is the zero after row 2, and the head of row 3.

    >>> shift_right(np.arange(1.0, 13.0).reshape(6, 2))[4]
    array([0., 7.])

    Source: labml-nn, ``transformers/xl/relative_mha.py``; its Chinese and English pages (seeds 000
    and 002).

    Erratum: labml's English page (seed 002), until issue 218, prints ``[9, 0, 7]`` as the last row.
    The code gives ``[6, 0, 7]``, as labml's Chinese page (seed 000) says.
    """
    check(ARRAYS, SHIFTED, x)
    *_, N, M = x.shape
    y = np.zeros_like(x)
    for i in range(N):
        for j in range(M):
            row, column = divmod(i * M + j, M + 1)
            if column < M:
                y[..., i, j] = x[..., row, column]
    return y


def rel_shift(x: Float[ndarray, "... N M"]) -> Float[ndarray, "... N M"]:
    r"""
    Row i moves N - 1 - i columns to the left: from "column c is distance M - 1 - c" to
    "column j is key j".

    Prepend a column of zeros, read the N (M + 1) numbers in order, drop the first N, and read the
    rest as N rows of M:

    .. math:: y_{ij} = \tilde x\big[\, N + i M + j \,\big], \qquad \tilde x = (0\; x_{00} \dots\;
              0\; x_{10} \dots x_{1,M-1} \dots)

    1. For j <= M - N + i the result is :math:`x_{i,j+N-1-i}`. These are the keys that a causal mask
       leaves visible.
    2. Beyond, there is one zero, then row i + 1 from its head on, and where that ends before the
       columns do (N > M + 1), another zero and row i + 2, and so on: numbers that belong to other
       queries. They are part of the specification (and of the score), and harmless only behind a
       causal mask.

    >>> rel_shift(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]))
    array([[3., 0., 4.],
           [5., 6., 0.],
           [7., 8., 9.]])

    Six rows of two numbers: row 0 sees no key of its own, and shows the zero and the head of row 2.

    >>> rel_shift(np.arange(1.0, 13.0).reshape(6, 2))[0]
    array([0., 5.])

    Source: Dai et al. 2019, appendix B; ``_rel_shift`` of kimiyoung/transformer-xl.

    Errata: a tutorial for TensorFlow 2 (seed 003) pads [N M] to [N M+1] but reshapes to [N+1 M],
    which has another number of elements unless N = M, and cuts the wrong axis; the shape to take is
    [M+1 N], and the authors' own file for TensorFlow does. With N = M the reshape is right, and the
    slice gives [N+1 N-1]. The tutorial also defines ``_rel_shift`` and calls ``rel_shift``.
    """
    check(ARRAYS, SHIFTED, x)
    *_, N, M = x.shape
    y = np.zeros_like(x)
    for i in range(N):
        for j in range(M):
            row, column = divmod(N + i * M + j, M + 1)
            if column > 0:
                y[..., i, j] = x[..., row, column - 1]
    return y


def shift_right_grad(
    d_output: Float[ndarray, "... N M"], x: Float[ndarray, "... N M"]
) -> tuple[Float[ndarray, "... N M"]]:
    r"""
    The gradient of :func:`shift_right` by x: every number goes back to where it was read.

    .. math:: \bar x_{rc} = \begin{cases} \bar y_{ij} & r (M + 1) + c = i M + j,\; 0 \le i < N,\;
              0 \le j < M \\ 0 & \text{no such i and j} \end{cases}

    1. Every element of x is read once or not at all; what the result has dropped, the tail of the
       last rows, gets exactly 0.
    2. A gradient that arrives at one of the zeros between the rows goes nowhere.

    >>> x = np.zeros((2, 2))
    >>> shift_right_grad(np.array([[1.0, 2.0], [3.0, 4.0]]), x)[0]
    array([[1., 2.],
           [4., 0.]])

    Source: the transpose of labml-nn's ``shift_right``.
    """
    check(ARRAYS, SHIFTED + D_SCORE, x, d_output)
    *_, N, M = x.shape
    d_x = np.zeros_like(x)
    for i in range(N):
        for j in range(M):
            row, column = divmod(i * M + j, M + 1)
            if column < M:
                d_x[..., row, column] = d_output[..., i, j]
    return (d_x,)


def rel_shift_grad(
    d_output: Float[ndarray, "... N M"], x: Float[ndarray, "... N M"]
) -> tuple[Float[ndarray, "... N M"]]:
    r"""
    The gradient of :func:`rel_shift` by x: every number goes back to where it was read.

    .. math:: \bar x_{rc} = \begin{cases} \bar y_{ij} & r (M + 1) + c + 1 = N + i M + j, \\ &
              0 \le i < N,\; 0 \le j < M \\ 0 & \text{no such i and j} \end{cases}

    1. Every element of x is read once or not at all; what the result has dropped, the head of the
       first rows, gets exactly 0.
    2. A gradient that arrives at one of the zeros between the rows goes nowhere; one that arrives
       at what wrapped around goes to the next query's row.

    >>> x = np.zeros((2, 2))
    >>> rel_shift_grad(np.array([[1.0, 2.0], [3.0, 4.0]]), x)[0]
    array([[0., 1.],
           [3., 4.]])

    Source: the transpose of ``_rel_shift`` of kimiyoung/transformer-xl; Dai et al. 2019, appendix
    B.
    """
    check(ARRAYS, SHIFTED + D_SCORE, x, d_output)
    *_, N, M = x.shape
    d_x = np.zeros_like(x)
    for i in range(N):
        for j in range(M):
            row, column = divmod(N + i * M + j, M + 1)
            if column > 0:
                d_x[..., row, column - 1] = d_output[..., i, j]
    return (d_x,)
