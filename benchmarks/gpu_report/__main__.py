"""
Run everything that wants a GPU, and keep what comes out: ``python -m benchmarks.gpu_report``.

Exit status: 0 every step passed, 1 a step failed, 2 a step was not run: each says why.
"""

import argparse
import sys

from benchmarks.gpu_report import runner


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and run the steps."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: the GPU, if any")
    parser.add_argument("--quick", action="store_true", help="fewer cases; on a CPU fewer kernels")
    parser.add_argument("--step", choices=runner.LIMITS, action="append", help="alone; repeatable")
    parser.add_argument("--group", choices=runner.GROUPS, help="the steps of a group alone")
    parser.add_argument("--seconds", type=float, help=f"default: {runner.BUDGET:.0f} a group")
    parser.add_argument("--out", help="default: benchmarks/results/DEVICE/DATE, for a GPU")
    return runner.main(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
