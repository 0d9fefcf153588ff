"""
The project's own columns on the machine, as ``--device sm_90a`` runs them: their own launchers,
binders and options, with Triton's or NVRTC's PTX in place of a binary. In a process of its own, for
a column looks for its GPU once.

    python -m tests.ptx.own_kernels.columns cupy_impl --target 90 --dtypes bfloat16 --cases 2
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest

from attnverify import ROOT
from attnverify.device_assignment import show_device
from attnverify.ptx.kernel import Kernel

HOW = {"torch_impl": "triton", "cupy_impl": "cuda"}


def judge_column(column: str, *options: str) -> list[dict[str, Any]]:
    """What the judge says of cases of each kernel of a column, in another process."""
    command = [sys.executable, "-m", "tests.ptx.own_kernels.columns", column, *options]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


@contextmanager
def launches() -> Iterator[list[str]]:
    """The kernels that the machine executes meanwhile."""
    names: list[str] = []
    execute = Kernel.launch

    def launch(kernel: Kernel, *args: Any, **settings: Any) -> Any:
        names.append(kernel.name)
        return execute(kernel, *args, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "launch", launch)
        yield names


def judged_here(
    column: str, target: int, dtypes: Sequence[str], cases: int, only: str = ""
) -> Iterator[dict[str, Any]]:
    """So many discriminating cases of each kernel, and of its gradients, in each dtype."""
    from attnverify.backends.loader import load

    show_device(f"sm_{target}")
    backend = load(column)
    assert backend.implementations and backend.machine, (backend.broken, backend.missing)
    for implementation in backend.implementations:
        if implementation.how == HOW[column] and only in implementation.name:
            for dtype in dtypes:
                yield from islice(discriminating(implementation, dtype), cases)


def discriminating(implementation: Any, dtype: str) -> Iterator[dict[str, Any]]:
    """The cases that no trivial answer passes, judged: a kernel's verdict one by one."""
    from attnverify.inputs.sampling import draw_recipes
    from attnverify.judge.case import case_of
    from attnverify.judge.errors import Disagreement, Unsupported
    from attnverify.judge.judging import judge

    told = {"kernel": implementation.name, "dtype": dtype, "on": implementation.backend.device}
    for recipe in draw_recipes(implementation.operation.name, "any", 80, 0):
        case = case_of(recipe, dtype)
        if not case.is_discriminating(implementation.precision(dtype)):
            continue  # before a variant is compiled for it
        try:
            with launches() as names:
                verdict = judge(implementation, case)
        except Unsupported:
            continue
        except Disagreement as error:
            yield told | {"recipe": str(recipe), "failed": str(error)}
            continue
        if verdict.discriminating:
            yield told | {"recipe": str(recipe), "budget": verdict.budget, "launched": names}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("column", choices=HOW)
    parser.add_argument("--target", type=int, default=90)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    parser.add_argument("--cases", type=int, default=2)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for line in judged_here(given.column, given.target, given.dtypes, given.cases, given.only):
        print(json.dumps(line), flush=True)
