"""What was only allocated is not read, and no kernel leaves the views that it is given."""

from collections.abc import Callable, Iterator

import pytest
import torch
import triton
import triton.language as tl

from attnverify import ptx
from attnverify.ptx.launchers.tensors.allocations import Allocations
from attnverify.ptx.launchers.torch_cuda import pretended_cuda
from attnverify.ptx.launchers.triton import on_machine


@triton.jit
def copy(x, y, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < m)


@pytest.fixture
def gpu() -> Iterator[None]:
    with pretended_cuda(90), Allocations(), on_machine(90, views=True):
        yield


def copied(x: torch.Tensor, n: int = 64, m: int = 64) -> torch.Tensor:
    y = torch.empty(64, device="cuda")
    copy[(1,)](x, y, n, m, BLOCK=64)
    return y


def fill_half(x: torch.Tensor) -> None:
    x[:32] = 1


def from_a_kernel(x: torch.Tensor) -> None:
    copy[(1,)](torch.ones(64), x, 32, 32, BLOCK=64)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("write", [fill_half, from_a_kernel])
def test_what_nobody_wrote_is_not_read(write: Callable[[torch.Tensor], None]) -> None:
    x = torch.empty(64, device="cuda")
    write(x)
    assert (copied(x, 32, 32)[:32] == 1).all()
    with pytest.raises(ptx.Finding, match="unwritten: a read of x where nobody has written"):
        copied(x, 33, 32)


def out_of_numpy(x: torch.Tensor) -> None:
    x.numpy()[:] = 1


WRITERS: dict[str, Callable[[torch.Tensor], object]] = {
    "fill_": lambda x: x.fill_(1),
    "out": lambda x: torch.add(torch.zeros(64), 1, out=x),
    "copy_": lambda x: x.copy_(torch.ones(64)),
    "a list of tensors": lambda x: torch._foreach_copy_([x], [torch.ones(64)]),
    "a view": lambda x: x.view(8, 8).T.fill_(1),
    "NumPy": out_of_numpy,
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_whoever_writes_is_seen(write: Callable[[torch.Tensor], object]) -> None:
    x = torch.empty(64, device="cuda")
    write(x)
    assert (copied(x) == 1).all()


@pytest.mark.usefixtures("gpu")
def test_memory_that_is_used_again_is_another() -> None:
    for _ in range(20):
        torch.empty(64, device="cuda")
        assert (copied(torch.ones(64, device="cuda")) == 1).all()


@pytest.mark.usefixtures("gpu")
def test_a_kernel_stays_within_the_views_that_it_is_given() -> None:
    storage = torch.ones(128, device="cuda")
    copied(storage[10:42], 32, 32)
    with pytest.raises(ptx.Finding, match="4 bytes at 128 of x, which has 128 bytes"):
        copied(storage[10:42], 33, 32)
    copy[(1,)](storage[10:42], storage[50:], 33, 32, BLOCK=64)  # between the two of one storage


def test_without_views_a_storage_is_one_array() -> None:
    with on_machine(90):
        copy[(1,)](torch.ones(128)[10:42], torch.empty(64), 64, 64, BLOCK=64)
