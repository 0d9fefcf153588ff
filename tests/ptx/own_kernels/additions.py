"""
How often the gradients of Transformer-XL add to memory that others add to, counted as it is
executed: float32 numbers (a vector of four is four) and instructions, each of one thread, for a
pair of a query and a key that it sees.

    python -m tests.ptx.own_kernels.additions --lengths 512 --dtypes bfloat16 float32
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from attnverify.ptx.instructions import atomics
from tests.ptx.own_kernels.cases import Case
from tests.ptx.own_kernels.cuda import cuda_on_machine, run_cuda
from tests.ptx.own_kernels.triton import run_triton, triton_on_machine

COLUMNS = {"CUDA C++": (cuda_on_machine, run_cuda), "Triton": (triton_on_machine, run_triton)}
WIDTH = 64


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """The additions to global memory that the machine executes meanwhile."""
    found, update = Counter[str](), atomics.updated

    def count(m: Any, space: str, address: Any, lanes: Any, part: Any, *given: Any) -> Any:
        if space == "global":
            found["numbers"] += given[0][0].size
            found["instructions"] += len(lanes)
        return update(m, space, address, lanes, part, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomics, "updated", count)
        yield found


def count_a_pair(column: str, length: int, dtype: str, target: int = 90) -> dict[str, float]:
    """Additions for each visible pair of as many queries as keys: numbers, and instructions."""
    heads = [(1, 1, length, WIDTH)] * 3
    tables = (1, length, WIDTH), (1, WIDTH), (1, WIDTH)
    on_machine, run = COLUMNS[column]
    with on_machine(target), counted() as found:
        run(Case("transformer_xl_attention", (*heads, *tables)), dtype)
    pairs = length * (length + 1) // 2
    return {name: count / pairs for name, count in found.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", nargs="+", type=int, default=[512])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    given = parser.parse_args()
    for column in COLUMNS:
        for dtype in given.dtypes:
            for length in given.lengths:
                told = count_a_pair(column, length, dtype)
                figures = ", ".join(f"{x:.2f} {name}" for name, x in told.items())
                print(f"{column}, {dtype}, {length} queries and keys: {figures}", flush=True)
