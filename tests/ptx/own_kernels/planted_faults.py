"""
The faults that are planted in the project's kernels, executed as a GPU would be given them: after
how many cases of the suite the compiled path shows each, beside the tests that run the same faults
in Triton's interpreter and on the C++ host machine.

    python -m tests.ptx.own_kernels.planted_faults cupy_impl --only scale
    python -m tests.ptx.own_kernels.planted_faults torch_impl --record docs/data/kills_ptx.json
"""

import argparse
import json
import re
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from attnverify.device_assignment import show_device
from tests.ptx.own_kernels.columns import launches
from tests.ptx.own_kernels.published import lines_of, write

COLUMNS = ("torch_impl", "cupy_impl")

MOST = 200
"""All that the suite has: 100 draws of the default profile, 25 with NaN in hidden slots, probes."""


def run_faults(column: str, only: str, most: int) -> Iterator[dict[str, Any]]:
    """Plant each fault in turn, in a column that was imported with the machine for its GPU."""
    from attnverify.backends.loader import load

    show_device("sm_90a")
    backend = load(column)
    assert backend.device == "PTX sm_90a, machine", backend.broken
    by_name = {implementation.name: implementation for implementation in backend.implementations}
    with backend.machine.entered():  # type: ignore[union-attr]  # these modules import the column
        faults = import_module(f"tests.ptx.own_kernels.faults_of_{column}").find_faults()
    for name, (plant, operation, dtype) in faults.items():
        if only not in name:
            continue
        how = "triton" if column == "torch_impl" else "cuda"
        started = time.process_time()
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
            plant(Path(folder), patch)
            with launches() as names:
                count, told = find_fault(by_name[f"{operation}_{how}"], dtype, most)
            assert names, "the machine has executed nothing"
        seconds = round(time.process_time() - started, 1)
        told = {"caught after": count, "how": told, "dtype": dtype, "CPU seconds": seconds}
        yield {"column": column, "fault": name, "operation": operation} | told


def find_fault(implementation: Any, dtype: str, most: int) -> tuple[int, str]:
    """After how many cases a fault shows, and how: by what the machine saw, or by its numbers."""
    from attnverify.judge.case import case_of
    from attnverify.judge.errors import Disagreement
    from attnverify.judge.judging import judge
    from tests.support.triton_sabotage import cases

    recipes = islice(cases(implementation.operation.name), most)
    for count, recipe in enumerate(recipes, 1):
        try:
            judge(implementation, case_of(recipe, dtype))
        except Disagreement as error:
            seen = re.search(r"machine saw: ([\w ]+)", str(error))
            assert "raised " not in str(error), f"the fault does not run: {error}"
            return count, seen[1] if seen else "by its numbers"
    return 0, ""


def record(line: dict[str, Any], path: Path) -> None:
    """Put what was found of a fault in place of what was known of it."""
    key = line["column"], line["fault"]
    others = [x for x in lines_of(path, "faults") if (x["column"], x["fault"]) != key]
    faults = sorted([*others, line], key=lambda x: (x["column"], x["fault"]))
    write(path, f"up to {MOST} cases", "faults", faults)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("column", choices=COLUMNS)
    parser.add_argument("--only", default="")
    parser.add_argument("--most", type=int, default=MOST)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    for line in run_faults(given.column, given.only, given.most):
        print(json.dumps(line), flush=True)
        if given.record:
            record(line, given.record)
