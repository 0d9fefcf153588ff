"""The kill score of the compiled path, as it is published: whole, and true."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cupy_impl.test_cuda_kernels import FAULTS as CUDA
from tests.ptx.own_kernels.planted_faults import record
from tests.torch_impl.triton.test_kernels import FAULTS as TRITON

ROOT = Path(__file__).parents[3]
PUBLISHED = json.loads((ROOT / "docs" / "data" / "kills_ptx.json").read_text())["faults"]


def of_column(column: str) -> dict[str, Any]:
    return {line["fault"]: line for line in PUBLISHED if line["column"] == column}


def test_every_planted_fault_is_published() -> None:
    assert of_column("torch_impl").keys() == TRITON.keys()
    assert of_column("cupy_impl").keys() == CUDA.keys()


def test_a_fault_that_is_not_noticed_is_named_in_the_book() -> None:
    missed = {line["fault"] for line in PUBLISHED if not line["caught after"]}
    chapter = (ROOT / "docs" / "chapters" / "machine.rst").read_text()
    assert all(f"*{fault}*" in chapter for fault in missed)


def test_a_new_figure_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "kills.json"
    for count in (0, 3):
        record({"column": "c", "fault": "f", "caught after": count}, path)
    (line,) = json.loads(path.read_text())["faults"]
    assert line["caught after"] == 3


@pytest.mark.thorough
@pytest.mark.parametrize("column", ["torch_impl", "cupy_impl"])
def test_the_published_figures_are_those_of_today(column: str) -> None:
    """In a process of its own: the column is imported with the machine for its GPU."""
    line = [sys.executable, "-m", "tests.ptx.own_kernels.planted_faults", column]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    found = {x["fault"]: x for x in map(json.loads, done.stdout.splitlines())}
    published = of_column(column)
    assert {name: x["caught after"] > 0 for name, x in found.items()} == {
        name: x["caught after"] > 0 for name, x in published.items()
    }
