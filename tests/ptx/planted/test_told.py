"""Bugs that are told in public: each is seen but for three, none of their twins is accused."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from attnverify import ptx
from attnverify.ptx.launchers.programs import on_gpu
from tests.ptx.planted.measure import is_seen, launch, rows, source_of, summary
from tests.ptx.planted.table import Bug, Kernel, Program
from tests.ptx.planted.told_cuda import TOLD_CUDA
from tests.ptx.planted.told_triton import TOLD_TRITON

ROOT = Path(__file__).parents[3]
RECORD = json.loads((ROOT / "tests/ptx/planted/measured.json").read_text())
NOT_SEEN = {
    "no __syncwarp behind the sum": "threads of a warp go in step here",
    "no fence behind the wait": "an atomic access that says nothing of order is taken to acquire",
    "blocks that overlap": "both programs write the same numbers",
}
CUDA = [(kernel, bug) for kernel in TOLD_CUDA for bug in kernel.bugs]
TRITON = [(program, bug) for program in TOLD_TRITON for bug in program.bugs]


@pytest.mark.parametrize("lanes", [64, 4096])
@pytest.mark.parametrize("kernel", TOLD_CUDA, ids=lambda each: each.name)
def test_no_right_kernel_is_accused(kernel: Kernel, lanes: int) -> None:
    kernel.answer(launch(kernel, kernel.source, lanes=lanes, seed=lanes))


def finding_of(launched: Callable[[], object]) -> str | None:
    """The kind of what is found; None where a kernel runs to its end, right or wrong."""
    try:
        launched()
    except ptx.Finding as finding:
        return finding.kind
    except ValueError as error:
        return "cpu tensor" if "cpu tensor?" in str(error) else str(error)
    except AssertionError:
        return None
    return None


@pytest.mark.parametrize(("kernel", "bug"), CUDA, ids=lambda each: each.name)
def test_a_bug_in_cuda_is_seen(kernel: Kernel, bug: Bug) -> None:
    assert kernel.source.count(bug.right) == 1
    found = finding_of(lambda: launch(kernel, source_of(kernel, bug), timeout=60))
    assert found == (None if bug.name in NOT_SEEN else bug.kind)


def run(program: Program, bug: Bug | None, folder: Path) -> None:
    file = folder / "program.py"
    file.write_text(source_of(program, bug))
    with on_gpu(90, timeout=60):
        runpy.run_path(str(file), run_name="__main__")


@pytest.mark.parametrize("program", TOLD_TRITON, ids=lambda each: each.name)
def test_no_right_program_is_accused(program: Program, tmp_path: Path) -> None:
    run(program, None, tmp_path)


@pytest.mark.parametrize(("program", "bug"), TRITON, ids=lambda each: each.name)
def test_a_bug_in_triton_is_seen(program: Program, bug: Bug, tmp_path: Path) -> None:
    assert program.source.count(bug.right) == 1
    found = finding_of(lambda: run(program, bug, tmp_path))
    assert found == (None if bug.name in NOT_SEEN else bug.kind)


def test_the_record_is_of_these_bugs() -> None:
    """And nineteen of twenty are seen there, and no twin is accused."""
    names = [(program.name, bug.name if bug else None) for program, bug in rows()]
    assert [(row["program"], row["bug"]) for row in RECORD] == names
    said = {bug: [row["machine"][0] for row in RECORD if bool(row["bug"]) is bug]
            for bug in (True, False)}  # fmt: skip
    assert set(said[False]) == {"right numbers"}
    assert sum(map(is_seen, said[True])) >= 0.95 * len(said[True])
    assert len(said[True]) - sum(map(is_seen, said[True])) == len(NOT_SEEN)


def test_the_book_shows_the_record() -> None:
    chapter = (ROOT / "docs/chapters/any_kernel.rst").read_text()
    for line in summary(RECORD):
        assert line in chapter, line
