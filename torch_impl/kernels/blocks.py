"""
Block sizes by device and shape class, in one table to read and to change.

A block has as many queries as keys: the rolling band of the relative kernels needs that, and the others lose little. What a GPU should be
given is a guess from the registers that the compiler reports (shared memory and spills of sm_90) until it is measured on one.
"""

from typing import NamedTuple

import torch

__all__ = ["Blocks", "blocks", "padded"]


class Blocks(NamedTuple):
    """Queries and keys of a block, warps of a program, stages of its pipeline."""

    size: int
    warps: int
    stages: int


INTERPRETED = {"short": Blocks(16, 4, 1), "long": Blocks(128, 4, 1)}
"""Short blocks, so that small cases have several of them; long ones where the interpreter would take seconds."""

COMPILED = {
    # (kernel, relative positions, a half type): at widths up to 64, up to 128, beyond
    ("forward", False, True): (Blocks(128, 8, 3), Blocks(64, 4, 2), Blocks(32, 4, 2)),
    ("forward", True, True): (Blocks(64, 4, 2), Blocks(64, 8, 2), Blocks(32, 4, 1)),
    ("backward", False, True): (Blocks(64, 4, 2), Blocks(64, 8, 2), Blocks(32, 4, 1)),
    ("backward", True, True): (Blocks(64, 8, 2), Blocks(32, 4, 2), Blocks(32, 4, 1)),
    ("forward", False, False): (Blocks(64, 8, 2), Blocks(32, 4, 2), Blocks(32, 8, 1)),
    ("forward", True, False): (Blocks(32, 4, 2), Blocks(32, 4, 1), Blocks(16, 4, 1)),
    ("backward", False, False): (Blocks(32, 4, 2), Blocks(32, 8, 1), Blocks(16, 4, 1)),
    ("backward", True, False): (Blocks(32, 4, 1), Blocks(16, 4, 1), Blocks(16, 4, 1)),
}


def blocks(kernel: str, relative: bool, query: torch.Tensor, keys: int, widest: int) -> Blocks:
    """The blocks of a kernel for these tensors."""
    if not query.is_cuda:
        return INTERPRETED["long" if query.shape[-2] * keys > 20000 else "short"]
    return COMPILED[kernel, relative, query.dtype.itemsize == 2][(widest > 64) + (widest > 128)]


def padded(width: int) -> int:
    """The power of two that holds a width; at least 16, the least that a product takes."""
    return max(16, 1 << (width - 1).bit_length())
