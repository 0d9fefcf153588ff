"""The record of 27 public kernels, the book that shows it, and how their files are read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnverify.ptx.findings import NotUnderstood
from attnverify.ptx.launchers.programs import Log
from tests.ptx.public.files import Case, commit, cuda_kernel, definitions, largest
from tests.ptx.public.run import CASES, FIRST, RECORD, ROUNDINGS, main, table, verdict
from tests.ptx.public.triton_kernels import philox

CHAPTER = Path(__file__).parents[3] / "docs/chapters/any_kernel.rst"
ROWS: list[dict[str, Any]] = json.loads(RECORD.read_text())
PYTHON = """
import triton_that_is_not_there as missing
SIZE = 4
OTHER = missing.size()

def used(x):
    SUM = x + SIZE
    return SUM

def wanted(y, SUM=2):
    return used(y)

x = wanted(OTHER)
"""
CUDA = """
__global__ void fill(float *x, int n) { if (threadIdx.x <= n) x[threadIdx.x] = 2; }
template <int N> __global__ void few(int *x) { x[threadIdx.x] = N; }
"""


def test_the_record_is_of_these_kernels() -> None:
    assert [tuple(row[x] for x in ("kernel", "repository", "file")) for row in ROWS] == [
        (case.name, case.repository, case.file) for case in CASES
    ]
    mended = [case.name for case in FIRST if "with one barrier more" in case.name]
    assert len(FIRST) - len(mended) == 27 and len(mended) == 1
    assert len(CASES) - len(FIRST) >= 25


@pytest.mark.parametrize(
    ("row", "case"), list(zip(ROWS, CASES, strict=True)), ids=[x.name for x in CASES]
)
def test_each_is_right_or_has_the_finding_that_is_known(row: dict[str, Any], case: Case) -> None:
    """None is wrong, refused, accused or hangs; a race names both lines."""
    if case.finding is None:
        assert row["verdict"] == "right" and 0 <= row["error"] <= ROUNDINGS * case.unit
        assert row["launches"] >= 1
    else:
        assert (row["verdict"], row["kind"]) == ("finding", case.finding)
        assert row["words"].count(f"{case.file}:") == 1 + (case.finding == "race")
    assert row["seconds"] < 10 and len(row["commit"]) == 7


def test_the_book_shows_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--table"])
    shown = capsys.readouterr().out.split("\n\n")
    assert [each.count("   * - ") for each in shown] == [len(FIRST), len(CASES) - len(FIRST)]
    assert all(each in CHAPTER.read_text() for each in shown)
    assert table(ROWS[:1]).count(ROWS[0]["commit"]) == 1


def judged(run: Any) -> dict[str, Any]:
    return verdict(Case("made up", "theirs", "kernel.cu", run, 2.0**-24), Path("/theirs"), Log())


def test_a_wrong_kernel_is_told_from_a_right_one() -> None:
    expected = np.array([1.0, -4.0])
    for off, told in ((0.0, "right"), (60 * 2.0**-22, "right"), (70 * 2.0**-22, "wrong")):
        assert judged(lambda _, off=off: {"y": (expected + off, expected)})["verdict"] == told
    with pytest.raises(ValueError, match=r"wanted \(2,\), got \(3,\)"):
        largest({"y": (np.zeros(3), expected)})


def test_findings_and_refusals_are_told_in_their_words(tmp_path: Path) -> None:
    file = tmp_path / "src" / "kernel.cu"
    file.parent.mkdir()
    file.write_text(CUDA)

    def beyond(_: Path) -> Any:
        cuda_kernel(file, "fill").launch(1, 32, [np.zeros(16, np.float32), np.int32(16)])

    def refused(_: Path) -> Any:
        raise NotUnderstood("/theirs/kernel.cu: what nobody knows")

    said = judged(beyond)
    assert (said["verdict"], said["kind"]) == ("finding", "out of bounds")
    assert "4 bytes at 64 of argument 0, which has 64 bytes" in said["words"]
    assert "kernel.cu:2" in said["words"]
    assert judged(refused) == {"verdict": "refused", "words": "kernel.cu: what nobody knows",
                               "launches": 0, "seconds": 0}  # fmt: skip


def test_a_kernel_of_a_file_is_found_and_may_be_changed(tmp_path: Path) -> None:
    file = tmp_path / "src" / "kernel.cu"
    file.parent.mkdir()
    file.write_text(CUDA)
    x, n = np.zeros(16, np.float32), np.int32(16)
    cuda_kernel(file, "fill", change=("<= n", "< n")).launch(1, 32, [x, n])
    assert (x == 2).all()
    few = np.zeros(32, np.int32)
    cuda_kernel(file, "few<7>", is_template=True).launch(1, 32, [few])
    assert (few == 7).all()
    with pytest.raises(ValueError, match="wanted one 'x', got "):
        cuda_kernel(file, "fill", change=("x", "y"))


def test_definitions_bring_what_they_need_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a-tutorial.py"
    file.write_text(PYTHON)
    module = definitions(file, "wanted")
    assert module.wanted(3) == 7 and not hasattr(module, "OTHER") and not hasattr(module, "x")
    assert module.wanted.__code__.co_firstlineno == 10


def test_a_copy_without_history_says_its_commit(tmp_path: Path) -> None:
    (tmp_path / "COMMIT").write_text("0123abc\n")
    assert commit(tmp_path) == "0123abc"


def test_random_bits_are_those_of_the_paper() -> None:
    """Random123's known answer for Philox 4x32-10 of zeros."""
    assert philox(0, np.zeros(1, np.int64))[0] == 0x6627E8D5
