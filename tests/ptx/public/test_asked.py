"""What launchers of public kernels ask for, and were not given until they were run here."""

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from attnverify.ptx.launchers import arrays
from attnverify.ptx.launchers.programs import on_gpu
from attnverify.ptx.launchers.triton import on_machine


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def named(specialization: object) -> str:
    return "a_name_of_its_own"


@triton.jit(repr=named)
def doubled(X, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(X + at, tl.load(X + at) * 2)


@triton.jit
def all_doubled(ADDRESSES, TILES, BLOCK: tl.constexpr):
    x = tl.load(ADDRESSES + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    for tile in range(TILES):
        at = tile * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + at, tl.load(x + at) * 2)


def test_a_kernel_may_have_a_name_of_its_own() -> None:
    """aiter's ``make_kernel_repr``: Triton's cache keeps the file under the function's name."""
    x = torch.ones(64)
    with on_machine(90) as machine:
        doubled[(2,)](x, BLOCK=32)
    assert x.eq(2).all() and machine.launches[0].kernel == "a_name_of_its_own"


def test_tensors_on_the_active_device_are_those_of_the_gpu() -> None:
    """Triton's tutorials make all of their tensors so."""
    with on_gpu(90):
        device = triton.runtime.driver.active.get_active_torch_device()
        x = torch.ones(64, device=device)
        doubled[(2,)](x, BLOCK=32)
        assert x.eq(2).all() and x.device == device == torch.device("cuda", 0)
        assert triton.runtime.driver.active.get_device_interface() is torch.cuda
    with on_machine(90):
        assert triton.runtime.driver.active.get_active_torch_device() == torch.device("cpu")


@pytest.mark.parametrize("warps", [4, 32])
def test_a_launcher_may_ask_how_many_programs_fit(warps: int) -> None:
    """As the tutorial on softmax does: registers of the GPU over those of a program."""
    with on_gpu(90):
        x = torch.ones(64, device="cuda")
        kernel = doubled.warmup(x, BLOCK=32, num_warps=warps, grid=(1,))
        kernel._init_handles()
        fit = triton.runtime.driver.active.utils.get_device_properties(0)["max_num_regs"] // (
            kernel.n_regs * 32 * warps
        )
    assert fit == 32 // warps


def test_an_array_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of groups find theirs by addresses: each look is one at all that Python holds."""
    looks, find = [], arrays.find_living
    monkeypatch.setattr(arrays, "find_living", lambda: looks.append(1) or find())
    with on_gpu(90):
        given = [torch.ones(256, device="cuda") for _ in range(3)]
        addresses = torch.tensor([x.data_ptr() for x in given], device="cuda")
        all_doubled[(3,)](addresses, 4, BLOCK=64)
        assert all(x.eq(2).all() for x in given)
    assert len(looks) == 3
