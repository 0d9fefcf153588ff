"""
How a module's arguments become those of its operation: the order of their axes, the meaning of a
mask, and the words in which a wrong shape is refused, those of the layout in which it came.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnverify.contract.arguments import check_mask
from attnverify.contract.arrays import BOOL
from attnverify.contract.shapes import Pattern, pattern

from ..arrays import TENSORS

__all__ = ["Layout", "layout", "visible_where_not"]


class Layout(NamedTuple):
    """The order of the axes: the patterns of what modules are given, and how they are turned."""

    batch_first: bool
    x: Pattern
    cross: Pattern
    same: Pattern
    x_and_mem: Pattern

    def turn(self, x: Tensor) -> Tensor:
        """From this layout to the batch first, and back."""
        return x if self.batch_first else x.transpose(0, 1)

    def visible(self, mask: Any, B: int, H: int, N: int, M: int) -> Any:
        """
        labml's [N M], [N M B] or [N M B H] as [B H N M]; with the batch first the mask is one
        already.
        """
        if mask is None or self.batch_first:
            check_mask(TENSORS, "mask", mask, (B, H, N, M))
            return mask
        if TENSORS.kind(mask) != BOOL:
            raise ValueError(f"mask: wanted a boolean tensor, got {TENSORS.describe(mask)}")
        sizes = zip(mask.shape, (N, M, B, H), strict=False)
        if mask.ndim not in (2, 3, 4) or any(size not in (1, whole) for size, whole in sizes):
            raise ValueError(
                f"mask: wanted [N M], [N M B] or [N M B H] with N={N} M={M} B={B} H={H}, or 1 for "
                f"any of them, got {tuple(mask.shape)}"
            )
        return mask[(...,) + (None,) * (4 - mask.ndim)].permute(2, 3, 0, 1)


def _layout(batch_first: bool) -> Layout:
    N, M, S = ("B N F", "B M F", "B S F") if batch_first else ("N B F", "M B F", "S B F")
    return Layout(
        batch_first,
        pattern(f"x [{N}]"),
        pattern(f"query [{N}], key [{M}], value [{M}]"),
        pattern(f"query [{N}], key [{N}], value [{N}]"),
        pattern(f"x [{N}], mem? [{S}]"),
    )


_LAYOUTS = {batch_first: _layout(batch_first) for batch_first in (False, True)}


def layout(batch_first: bool) -> Layout:
    """The one with the batch first, or with the sequence first."""
    return _LAYOUTS[bool(batch_first)]


def visible_where_not(attn_mask: Any) -> Any:
    """
    PyTorch's and seed 001's polarity to the specification's: a boolean attn_mask is True where
    hidden, a float one is added.
    """
    return (
        ~attn_mask if isinstance(attn_mask, Tensor) and attn_mask.dtype == torch.bool else attn_mask
    )
