"""
This project's kernels, compiled for GPUs that are not here and executed: right in every dtype,
forwards and backwards, without a finding.

How right they are is the judge's business; here a norm of errors shows that nothing is out of
place. The whole table, and the removal of every barrier, are ``-m thorough``.
"""

from collections.abc import Iterator
from itertools import islice, product
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl

from attnverify import ROOT
from attnverify.ptx.kernel import Recorded
from attnverify.ptx.launchers.triton import on_machine
from attnverify.ptx.removal import remove_each, summary
from attnverify.torch_impl.triton.kernels.launch import Kernel, head_and_block, head_and_last_block
from tests.ptx.own_kernels.additions import count_a_pair, counted
from tests.ptx.own_kernels.cases import CASES, run_reference
from tests.ptx.own_kernels.cuda import cuda_on_machine, run_cuda
from tests.ptx.own_kernels.published import lines_of
from tests.ptx.own_kernels.removals import (
    ALL,
    Compiled,
    count,
    remove,
    share_noticed,
)
from tests.ptx.own_kernels.triton import run_triton, triton_on_machine
from tests.ptx.small import kernel

DATA = ROOT / "docs" / "data"
ERRORS = {"bfloat16": 2e-2, "float16": 3e-3, "float32": 5e-6}
EVERY = list(product(CASES, (80, 90), ERRORS))


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


def test_triton_kernels_are_right_on_an_older_gpu() -> None:
    """Those of sm_90a are judged by each run of the main job."""
    check_triton("plain", 80, "bfloat16")


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "target", "dtype"), EVERY)
def test_every_triton_kernel_is_right(name: str, target: int, dtype: str) -> None:
    check_triton(name, target, dtype)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "target", "dtype"), EVERY)
def test_every_cuda_kernel_is_right(name: str, target: int, dtype: str) -> None:
    check_cuda(name, target, dtype)


def test_a_removed_barrier_is_noticed() -> None:
    """Of the first ones of the plain forward pass; all of every kernel are ``-m thorough``."""
    compiled = Compiled("triton", 90, "bfloat16", "plain")
    removals = list(islice(remove_each(compiled.record(CASES["plain"])[0]), 8))
    noticed = [removal for removal in removals if removal.outcome == "noticed"]
    assert len(noticed) >= 6
    assert all(removal.outcome != "wrong" for removal in removals), summary(removals)


def published() -> list[dict[str, Any]]:
    return lines_of(DATA / "removals.json", "kernels")


def test_what_was_removed_is_published() -> None:
    assert {line["kernels"] for line in published()} <= {str(each) for each in ALL}
    assert share_noticed(published()) > 0.9 and not count(published(), "wrong")
    told = (DATA.parent / "chapters" / "machine.rst").read_text()
    assert f"{len(published())} of {len(ALL)} groups of kernels" in told
    assert f"{count(published(), 'noticed'):,} are noticed" in told
    assert f"The other {count(published(), 'redundant'):,} are redundant" in told
    reasons = [reason for line in published() for reason in line["redundant"]]
    assert len(reasons) == count(published(), "redundant")
    assert all(" before it, " in reason and " behind it, " in reason for reason in reasons)


@pytest.mark.thorough
@pytest.mark.parametrize("compiled", ALL, ids=str)
def test_removed_barriers_are_noticed(compiled: Compiled) -> None:
    """As published; a line of the PTX may have moved."""
    found = remove(compiled)
    for before in published():
        if (before["kernels"], before["launches"]) == (str(compiled), compiled.sizes()):
            assert found["kinds"] == before["kinds"]
    assert share_noticed([found]) > 0.75 and not count([found], "wrong")


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_cuda_kernels_are_the_same_for_both_gpus(case: str) -> None:
    """So that removing barriers from one of them is enough."""
    first, second = (
        Compiled("cuda", target, "bfloat16", case).record(CASES[case]) for target in (80, 90)
    )
    assert first and [texts_of(call) for call in first] == [texts_of(call) for call in second]


def texts_of(call: Recorded) -> list[str]:
    return [each.text for each in call.kernel.program.instructions]


@pytest.mark.parametrize("column", ["CUDA C++", "Triton"])
def test_the_gradient_of_the_table_takes_one_addition_a_pair(column: str) -> None:
    """Of a block of pairs 64 rows; at the edge of a causal one are pairs that none sees."""
    found = count_a_pair(column, 256, "bfloat16")
    assert 0.9 < found["numbers"] <= 1.35
    assert found["instructions"] <= (1.35 if column == "CUDA C++" else 0.35)


def test_additions_of_every_thread_are_counted() -> None:
    """A vector of two is two numbers; what a predicate leaves out is none."""
    body = """.reg .b64 %a; .reg .f32 %x; .reg .b32 %t; .reg .pred %p;
        ld.param.u64 %a, [out]; mov.f32 %x, 0f3F800000; mov.u32 %t, %tid.x;
        setp.lt.u32 %p, %t, 8; @%p red.global.add.v2.f32 [%a], {%x, %x};"""
    with counted() as found:
        kernel(body, [".u64 out"]).launch(1, 32, [np.zeros(2, np.float32)])
    assert found == {"numbers": 16, "instructions": 8}


HEADS, BLOCKS = 3, 4
IN_TURN = [[head, block] for head in range(HEADS) for block in range(BLOCKS)]
LAST_FIRST = [[head, block] for head in range(HEADS) for block in reversed(range(BLOCKS))]


@Kernel
def who_is_it(IN_TURN, LAST_FIRST):
    at = 2 * (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0))
    head, block = head_and_block()
    tl.store(IN_TURN + at, head)
    tl.store(IN_TURN + at + 1, block)
    head, block = head_and_last_block()
    tl.store(LAST_FIRST + at, head)
    tl.store(LAST_FIRST + at + 1, block)


def test_programs_of_triton_that_run_side_by_side_take_the_blocks_of_one_head() -> None:
    """In the order in which a GPU starts them; of heads first, each wave would read all keys."""
    found = torch.zeros(2, HEADS * BLOCKS, 2, dtype=torch.int32)
    with on_machine(90):
        who_is_it[(HEADS, BLOCKS)](found[0], found[1])
    assert found.tolist() == [IN_TURN, LAST_FIRST]
