"""
Shifts: the specification is :mod:`spec.shifts`.

In a buffer whose rows are a zero longer than M the shift is a view: :func:`slanted` behind a column
of zeros, :func:`skewed` in front of one. Whoever writes such a buffer (:mod:`torch_impl.relative`)
shifts for nothing; the operations, which take any x and share no memory with it, copy it once.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from attnverify.contract.attention import SHIFTED
from attnverify.contract.shapes import check

from .arrays import TENSORS

__all__ = ["rel_shift", "shift_right"]


def shift_right(x: Float[Tensor, "... N M"]) -> Float[Tensor, "... N M"]:
    """As :func:`spec.shifts.shift_right`, bit for bit: one copy, and a view of it."""
    check(TENSORS, SHIFTED, x)
    return slanted(torch.cat([x, x.new_zeros(*x.shape[:-1], 1)], dim=-1))


def rel_shift(x: Float[Tensor, "... N M"]) -> Float[Tensor, "... N M"]:
    """As :func:`spec.shifts.rel_shift`, bit for bit: one copy, and a view of it."""
    check(TENSORS, SHIFTED, x)
    padded = torch.cat([x.new_zeros(*x.shape[:-1], 1), x], dim=-1)
    return skewed(padded, x.shape[-1])


def slanted(x: Tensor) -> Tensor:
    """
    The view [... N M] of x [... N M+1] that reads the N M first of its numbers in rows of M:
    shift_right, where the last column is 0.
    """
    N, W = x.shape[-2:]
    return x.flatten(-2)[..., : N * (W - 1)].unflatten(-1, (N, W - 1))


def skewed(x: Tensor, M: int) -> Tensor:
    """
    The view [... N M] of x [... N W] whose row i starts at column N - i: element (i, j) is
    x[i, N - i + j]. rel_shift, where the first column is 0 and W = M + 1.

    With W > M, column 0 is read only where the row above has run out: beyond j = M - N + i for
    W = M + 1, never for W = N + M.
    """
    N, W = x.shape[-2:]
    return x.flatten(-2)[..., N:].unflatten(-1, (N, W - 1))[..., :M]


def columns_read(visible: Tensor, W: int) -> Tensor:
    """
    Which of the W columns the visible pairs [... N M] read through :func:`skewed`: its inverse, and
    any over the rows.
    """
    N, M = visible.shape[-2:]
    rows = torch.nn.functional.pad(visible, (0, W - 1 - M)).flatten(-2)
    return torch.nn.functional.pad(rows, (N, 0)).unflatten(-1, (N, W)).any(-2)
