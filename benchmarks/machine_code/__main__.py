"""Print the table, each kernel beside its goal; say which are missed."""

import argparse
import sys
from collections.abc import Iterator

from benchmarks.machine_code.table import (
    BACKWARD,
    BACKWARD_GOAL,
    CUDA,
    GOALS,
    HEAD,
    WIDTH,
    Row,
    find_cuda_rows,
    find_cuda_tangent_rows,
    find_tangent_rows,
    find_triton_row,
)
from benchmarks.machine_code.triton_kernels import TABLE


def find_rows(wanted: str, width: int = WIDTH) -> Iterator[Row]:
    """The rows whose names hold these letters, each as soon as it is compiled."""
    for name in TABLE:
        if wanted in name and "additive" not in name:
            yield find_triton_row(name, width=width)
    if width == WIDTH:  # a tangent is the same at any
        yield from find_tangent_rows(wanted)
        yield from find_cuda_tangent_rows(wanted)
    for name in CUDA:
        if wanted in name:
            yield from find_cuda_rows(name, width)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.machine_code", description=__doc__)
    parser.add_argument("-k", default="", help="only kernels whose name holds this")
    parser.add_argument("--width", type=int, default=WIDTH, help="of a head: 64, 128")
    given = parser.parse_args(arguments)
    print(f"sm_90a, bfloat16, D {given.width}; clocks of a processor for 64 x 64 pairs\n{HEAD}")
    found: dict[str, Row] = {}
    for row in find_rows(given.k, given.width):
        found[row.name] = row
        goal = GOALS.get(row.name) if given.width == WIDTH else None
        print(f"{row}  {'' if goal is None else describe_goal(row.issue, goal)}", flush=True)
    if set(BACKWARD) <= set(found) and given.width == WIDTH:
        both = sum(found[name].issue for name in BACKWARD)
        print(f"Transformer-XL, both gradients: {describe_goal(both, BACKWARD_GOAL)} ({both:.0f})")
    return 0


def describe_goal(issue: float, goal: float) -> str:
    return f"{goal} {'reached' if issue <= goal else f'missed by {issue - goal:.0f}'}"


if __name__ == "__main__":
    sys.exit(main())
