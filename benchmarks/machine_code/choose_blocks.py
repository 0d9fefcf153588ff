"""
Which blocks a Triton kernel should be given: all candidates compiled, and the one of the fewest
issue slots a pair among those that spill least and fit into shared memory.

    python -m benchmarks.machine_code.choose_blocks -k "forward, learned"
    python -m benchmarks.machine_code.choose_blocks -k additive --arch 80 --dtype fp32

Of an additive kernel the slots are those of a tangent, in all its loops over features.

The table that the kernels read (``torch_impl/triton/kernels/block_sizes.py``) has a second stage
where one stage takes 1 to 3 % fewer slots (plain, ALiBi), for its copies run beside the products,
which slots do not count. It has not followed yet where 128 x 128 saves 10 % (forward, mask).
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import product

from attnverify.torch_impl.triton.kernels.block_sizes import Blocks, of_gpu
from benchmarks.machine_code.table import ARCH, HEAD, WIDTH, Row, find_triton_row
from benchmarks.machine_code.triton_kernels import KERNELS

__all__ = ["candidates", "choose", "find_rows"]

SIZES = ((16, 16), (32, 32), (64, 32), (64, 64), (128, 64), (128, 128))
RELATIVE = ((16, 16), (32, 32), (64, 64))
"""The rolling band of the relative kernels needs as many keys as queries."""

ADDITIVE = ((16, 16), (16, 64), (32, 32), (32, 64), (32, 128), (64, 64), (64, 128))
"""Every pair of a block is kept in registers, feature by feature: the largest spill already."""

SHARED = {80: 163, 90: 227}
"""KiB of shared memory that a program may have."""


def candidates(name: str) -> Iterator[Blocks]:
    """List the blocks that a kernel may have."""
    sizes = {"relative": RELATIVE, "additive": ADDITIVE}.get(KERNELS[name][2], SIZES)
    for (queries, keys), warps, stages in product(sizes, (4, 8), (1, 2)):
        if queries * keys <= 128 * 128 // (2 if warps == 4 else 1):
            yield Blocks(queries, keys, warps, stages)


def find_rows(
    name: str, arch: int = ARCH, dtype: str = "bf16", width: int = WIDTH
) -> Iterator[tuple[Blocks, Row]]:
    """Compile every candidate that fits into shared memory."""
    for blocks in candidates(name):
        row = find_triton_row(name, blocks, arch, dtype, width)
        if row.shared <= SHARED[arch]:
            yield blocks, row


def choose(rows: Iterable[tuple[Blocks, Row]]) -> Blocks:
    """
    The fewest bytes spilled, then the fewest issue slots; of equals the least shared memory, which
    leaves room for another program.
    """
    return min(rows, key=lambda found: (found[1].spilled, found[1].issue, found[1].shared))[0]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.machine_code.choose_blocks", description=__doc__
    )
    parser.add_argument("-k", default="", help="only kernels whose name holds this")
    parser.add_argument("--arch", type=int, choices=SHARED, default=ARCH)
    parser.add_argument("--dtype", choices=("bf16", "fp16", "fp32"), default="bf16")
    parser.add_argument("--width", type=int, choices=(64, 128, 256), default=WIDTH)
    given = parser.parse_args(arguments)
    differing = 0
    for name in (name for name in KERNELS if given.k in name):
        print(HEAD)
        found = []
        for blocks, row in find_rows(name, given.arch, given.dtype, given.width):
            found.append((blocks, row))
            print(row, flush=True)
        best, (_, which, scores, _) = choose(found), KERNELS[name]
        chosen = of_gpu(which, scores, given.dtype != "fp32", given.width, given.arch)
        differing += best != chosen
        word = "as in the table" if best == chosen else f"the table has {chosen}"
        print(f"{name}: {best}: {word}\n", flush=True)
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
