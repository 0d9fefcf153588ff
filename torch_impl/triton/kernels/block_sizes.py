"""
Block sizes by device and shape class, in one table to read and to change.

The rolling band of the relative kernels needs as many keys as queries in a block. What a GPU is
given are the blocks of fewest issue slots a pair that spill no register, or few, by the machine
code (``python -m benchmarks.machine_code``): nothing was timed yet.
"""

from typing import NamedTuple

import torch

__all__ = ["Blocks", "blocks", "of_gpu", "padded"]


class Blocks(NamedTuple):
    """
    Queries and keys of a block, warps of a program, stages of its pipeline; the most registers of a
    thread, if ptxas is to be told.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None

    @property
    def options(self) -> dict[str, int | None]:
        """What Triton's compiler is told."""
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


INTERPRETED = (4, 8, 16, 128)
"""
The first of which both sides have two or three blocks, so that small cases have several; else 16,
and the last for long ones.
"""

COMPILED = {
    # (kernel, what the scores need, a half type): at widths up to 64, up to 128, beyond. The
    # gradients of keys and of rows have those of "backward" where they have none of their own
    ("forward", "plain", True): (
        Blocks(128, 128, 8, 2),
        Blocks(128, 128, 8, 2),
        Blocks(32, 32, 4, 1),
    ),
    ("forward", "masked", True): (
        Blocks(128, 64, 8, 2),
        Blocks(128, 64, 8, 2),
        Blocks(32, 32, 4, 1),
    ),
    ("forward", "relative", True): (
        Blocks(64, 64, 4, 1),
        Blocks(64, 64, 8, 1),
        Blocks(16, 16, 4, 1),
    ),
    ("forward", "additive", True): (
        Blocks(32, 128, 4, 1),
        Blocks(32, 128, 4, 1),
        Blocks(32, 32, 4, 1),
    ),
    ("backward", "plain", True): (Blocks(64, 64, 4, 2), Blocks(64, 64, 8, 2), Blocks(32, 32, 4, 1)),
    ("backward", "masked", True): (
        Blocks(32, 32, 4, 2),
        Blocks(32, 32, 4, 2),
        Blocks(32, 32, 4, 1),
    ),
    # eight warps compute 64 rows of scores twice, but four spill two sums of queries' gradients
    ("backward", "relative", True): (
        Blocks(64, 64, 8, 1),
        Blocks(32, 32, 8, 2),
        Blocks(16, 16, 4, 1),
    ),
    ("backward keys", "relative", True): (
        Blocks(64, 64, 4, 1),
        Blocks(32, 32, 8, 2),
        Blocks(16, 16, 4, 1),
    ),
    ("backward rows", "relative", True): (
        Blocks(32, 32, 4, 1),
        Blocks(32, 32, 8, 1),
        Blocks(16, 16, 4, 1),
    ),
    ("backward", "additive", True): (
        Blocks(32, 64, 4, 1),
        Blocks(32, 64, 4, 1),
        Blocks(32, 64, 4, 1),
    ),
    # float32 products take no tensor cores: a block lives in registers
    ("forward", "plain", False): (Blocks(32, 32, 4, 2), Blocks(16, 16, 4, 1), Blocks(16, 16, 4, 1)),
    ("forward", "masked", False): (
        Blocks(32, 32, 4, 2),
        Blocks(16, 16, 4, 1),
        Blocks(16, 16, 4, 1),
    ),
    ("forward", "relative", False): (
        Blocks(32, 32, 4, 2),
        Blocks(16, 16, 8, 1),
        Blocks(16, 16, 8, 1),
    ),
    ("forward", "additive", False): (
        Blocks(32, 32, 4, 1),
        Blocks(32, 32, 8, 1),
        Blocks(16, 16, 4, 1),
    ),
    ("cached", "plain", True): (
        Blocks(32, 64, 4, 2),
        Blocks(32, 64, 4, 2),
        Blocks(16, 32, 8, 1),
    ),
    ("cached", "plain", False): (
        Blocks(32, 32, 4, 1),
        Blocks(32, 32, 8, 1),
        Blocks(16, 16, 8, 1),
    ),
    ("backward", "plain", False): (
        Blocks(32, 32, 8, 2),
        Blocks(16, 16, 4, 2),
        Blocks(16, 16, 8, 1),
    ),
    ("backward keys", "plain", False): (
        Blocks(32, 32, 8, 2),
        Blocks(16, 16, 4, 1),
        Blocks(16, 16, 8, 1),
    ),
    ("backward", "masked", False): (
        Blocks(16, 16, 4, 1),
        Blocks(16, 16, 4, 2),
        Blocks(16, 16, 8, 1),
    ),
    ("backward keys", "masked", False): (
        Blocks(16, 16, 4, 1),
        Blocks(16, 16, 4, 1),
        Blocks(16, 16, 8, 1),
    ),
    ("backward", "relative", False): (
        Blocks(16, 16, 4, 1),
        Blocks(16, 16, 8, 1),
        Blocks(16, 16, 8, 1),
    ),
    ("backward rows", "relative", False): (
        Blocks(16, 16, 4, 2),
        Blocks(16, 16, 8, 2),
        Blocks(16, 16, 8, 1),
    ),
    ("backward", "additive", False): (
        Blocks(32, 32, 4, 1),
        Blocks(32, 32, 4, 1),
        Blocks(32, 32, 4, 1),
    ),
}

BEFORE_HOPPER: dict[tuple[str, str, bool], tuple[Blocks, Blocks, Blocks]] = {
    # mma.sync takes its factors from registers, wgmma from shared memory
    ("forward", "plain", True): (
        Blocks(128, 128, 8, 2),
        Blocks(128, 64, 8, 2),
        Blocks(32, 32, 4, 1),
    ),
    ("forward", "relative", True): (
        Blocks(32, 32, 4, 2),
        Blocks(32, 32, 8, 2),
        Blocks(16, 16, 4, 1),
    ),
    ("forward", "additive", True): (
        Blocks(32, 128, 4, 1),
        Blocks(32, 128, 8, 1),
        Blocks(32, 32, 4, 1),
    ),
    ("backward", "relative", True): (
        Blocks(32, 32, 4, 2),
        Blocks(32, 32, 8, 2),
        Blocks(16, 16, 8, 1, 255),
    ),
    # left alone, ptxas settles for 32 registers and spills 2304 bytes beyond a width of 128
    ("backward rows", "relative", True): (
        Blocks(32, 32, 4, 1),
        Blocks(32, 32, 8, 1),
        Blocks(16, 16, 8, 1, 255),
    ),
}
"""Where a device before sm_90 is given others."""


def blocks(
    kernel: str, scores: str, like: torch.Tensor, lengths: tuple[int, int], widest: int
) -> Blocks:
    """
    The blocks of a kernel for tensors like this one; ``scores`` is plain, masked, relative or
    additive.
    """
    if not like.is_cuda:
        size = interpreted(*lengths)
        return Blocks(size, size, 4, 1)
    major, minor = torch.cuda.get_device_capability(like.device)
    return of_gpu(kernel, scores, like.dtype.itemsize == 2, widest, 10 * major + minor)


def interpreted(N: int, M: int) -> int:
    *small, usual, large = INTERPRETED
    several = (size for size in small if size < min(N, M) and max(N, M) <= 3 * size)
    return large if N * M > 20000 else next(several, usual)


def of_gpu(kernel: str, scores: str, half: bool, widest: int, arch: int) -> Blocks:
    """The entry of the table for heads of this width on a GPU of this generation."""
    names = [kernel, "backward"] if kernel.startswith("backward ") else [kernel]
    tables = [BEFORE_HOPPER, COMPILED] if arch < 90 else [COMPILED]
    entries = (table.get((name, scores, half)) for table in tables for name in names)
    found = next(entry for entry in entries if entry)
    return found[(widest > 64) + (widest > 128)]


def padded(width: int) -> int:
    """The power of two that holds a width; at least 16, the least that a product takes."""
    return max(16, 1 << (width - 1).bit_length())
