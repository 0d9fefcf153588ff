"""
This project's kernels, compiled for GPUs that are not here and executed: right in every dtype,
forwards and backwards, without a finding.

How right they are is the judge's business; here a norm of errors shows that nothing is out of
place. The whole table, and the removal of every barrier, are ``-m thorough``.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from attnverify.ptx.kernel import Recorded
from attnverify.ptx.removal import Removal, remove_each, summary
from tests.ptx.own_kernels.cases import CASES, run_reference
from tests.ptx.own_kernels.cuda import cuda_on_machine, run_cuda
from tests.ptx.own_kernels.triton import run_triton, triton_on_machine

ERRORS = {"bfloat16": 2e-2, "float16": 3e-3, "float32": 5e-6}
EVERY = list(product(CASES, (80, 90), ERRORS))
FEW_TRITON = [("Transformer-XL", 90, "bfloat16")]
FEW_CUDA = [("Transformer-XL", 80, "bfloat16")]


@pytest.fixture(autouse=True)
def caches(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    folder = tmp_path_factory.getbasetemp() / "compiled"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
    monkeypatch.setenv("ATTNVERIFY_CACHE_DIR", str(folder / "nvrtc"))
    yield


def check(found: list[np.ndarray], name: str, dtype: str) -> None:
    expected = run_reference(CASES[name], dtype)
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected, strict=True):
        assert got.shape == wanted.shape
        assert np.linalg.norm(got - wanted) <= ERRORS[dtype] * np.linalg.norm(wanted)


def check_triton(name: str, target: int, dtype: str) -> None:
    with triton_on_machine(target) as machine:
        check(run_triton(CASES[name], dtype), name, dtype)
    assert machine.launches


def check_cuda(name: str, target: int, dtype: str) -> None:
    with cuda_on_machine(target):
        check(run_cuda(CASES[name], dtype), name, dtype)


@pytest.mark.parametrize(("name", "target", "dtype"), FEW_TRITON)
def test_triton_kernels_are_right(name: str, target: int, dtype: str) -> None:
    check_triton(name, target, dtype)


@pytest.mark.parametrize(("name", "target", "dtype"), FEW_CUDA)
def test_cuda_kernels_are_right(name: str, target: int, dtype: str) -> None:
    check_cuda(name, target, dtype)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "target", "dtype"), EVERY)
def test_every_triton_kernel_is_right(name: str, target: int, dtype: str) -> None:
    check_triton(name, target, dtype)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "target", "dtype"), EVERY)
def test_every_cuda_kernel_is_right(name: str, target: int, dtype: str) -> None:
    check_cuda(name, target, dtype)


def recorded_triton(target: int, dtype: str, names: list[str]) -> list[Recorded]:
    calls: list[Recorded] = []
    with triton_on_machine(target, record=calls):
        for name in names:
            run_triton(CASES[name], dtype)
    return calls


def noticed(removals: list[Removal]) -> float:
    """The share of removals that are noticed, of those that do anything."""
    useful = [removal for removal in removals if removal.outcome != "idle"]
    return sum(removal.outcome == "noticed" for removal in useful) / len(useful)


def test_a_removed_barrier_is_noticed() -> None:
    (call, *_) = recorded_triton(90, "bfloat16", ["Transformer-XL"])
    removals = list(remove_each(call))
    # read in the PTX: the turn of a band writes back where the same thread has read (bar.sync, each
    # of two loops), its shared memory is no operand of wgmma (fence.proxy), the first accumulators
    # are nobody's (wgmma.fence), and a tile is overwritten behind another barrier (bar.sync)
    redundant = [removal for removal in removals if removal.outcome in ("redundant", "idle")]
    assert len(removals) >= 50 and len(redundant) <= 8, summary(removals)
    assert all(removal.outcome != "wrong" for removal in removals)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("column", "target", "dtype"),
    list(product(["triton", "cuda"], [80, 90], ["bfloat16", "float32"])),
)
def test_removed_barriers_are_noticed(column: str, target: int, dtype: str) -> None:
    """Prints what was not noticed; ``pytest -s`` shows it."""
    calls: list[Recorded] = []
    if column == "triton":
        calls = recorded_triton(target, dtype, list(CASES))
    else:
        with cuda_on_machine(target, record=calls):
            for case in CASES.values():
                run_cuda(case, dtype)
    removals = [removal for call in calls for removal in remove_each(call)]
    print(
        f"\n{column} sm_{target} {dtype}: {len(removals)} removed, "
        f"{noticed(removals):.1%} of those that do anything noticed"
    )
    print(summary(removals))
    assert noticed(removals) > 0.85 and all(removal.outcome != "wrong" for removal in removals)
