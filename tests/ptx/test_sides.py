"""Tensors of the host and of the GPU do not meet, as they do not with PyTorch and Triton."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from attnverify.ptx.launchers.programs import on_gpu


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@pytest.fixture
def gpu() -> Iterator[None]:
    with on_gpu(90):
        yield


HOST: dict[str, Callable[[], torch.Tensor]] = {
    "ones": lambda: torch.ones(4),
    "named": lambda: torch.ones(4, device="cpu"),
    "of a list": lambda: torch.tensor([1.0, 2, 3, 4]),
    "of a tensor": lambda: torch.as_tensor(torch.zeros(4)),
    "of NumPy": lambda: torch.from_numpy(np.ones(4, np.float32)),
    "computed": lambda: (torch.rand(8) * 2)[:4],
    "brought back": lambda: torch.ones(4, device="cuda").cpu(),
    "to": lambda: torch.ones(4, device="cuda").to("cpu"),
    "to another": lambda: torch.ones(4, device="cuda").to(torch.ones(1)),
    "like": lambda: torch.ones_like(torch.ones(4, device="cuda"), device="cpu"),
    "a layer": lambda: torch.nn.Linear(3, 4).bias.detach(),
}
DEVICE: dict[str, Callable[[], torch.Tensor]] = {
    "ones": lambda: torch.ones(4, device="cuda"),
    "an index": lambda: torch.ones(4, device=0),
    "of a tensor": lambda: torch.as_tensor(torch.zeros(4, device="cuda")),
    "moved": lambda: torch.ones(4).cuda(),
    "to": lambda: torch.ones(4).to("cuda:0"),
    "to, another type": lambda: torch.ones(4).half().to("cuda", torch.float32),
    "to another": lambda: torch.ones(4).to(torch.ones(1, device="cuda")),
    "like": lambda: torch.ones_like(torch.ones(4, device="cuda")),
    "new": lambda: torch.ones(1, device="cuda").new_ones(4),
    "a view": lambda: torch.ones(2, 4, device="cuda")[1],
    "with a number of the host": lambda: torch.ones(4, device="cuda") * torch.tensor(2.0),
    "a layer": lambda: torch.nn.Linear(3, 4).to("cuda").bias.detach(),
    "by a default": lambda: in_default(),
}


def in_default() -> torch.Tensor:
    with torch.device("cuda"):
        return torch.ones(4)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("make", HOST.values(), ids=HOST)
def test_what_lies_on_the_host_says_so(make: Callable[[], torch.Tensor]) -> None:
    x, y = make(), torch.ones(4, device="cuda")
    assert not x.is_cuda and x.device == torch.device("cpu") and x.get_device() == -1
    with pytest.raises(RuntimeError, match="same device, but found at least two devices, cuda:0"):
        x + y
    with pytest.raises(ValueError, match=r"Pointer argument \(at 0\) cannot be accessed from Tri"):
        copy[(1,)](x, y, 4, BLOCK=4)
    assert np.asarray(x).shape == (4,)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("make", DEVICE.values(), ids=DEVICE)
def test_what_lies_on_the_gpu_says_so(make: Callable[[], torch.Tensor]) -> None:
    x, y = make(), torch.empty(4, device="cuda")
    assert x.is_cuda and x.device == torch.device("cuda", 0) and x.get_device() == 0
    copy[(1,)](x, y, 4, BLOCK=4)
    assert torch.equal(x, y)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.cat([x, torch.ones(4)])
    for turned in (torch.Tensor.numpy, np.asarray):
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            turned(x)


ALLOWED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "copy_": lambda x, y: x.copy_(y),
    "an element": lambda x, y: x[0] + y[0],
    "indices of the host": lambda x, y: x[torch.tensor([0, 1])],
    "assigned": lambda x, y: x.__setitem__(0, 3.0),
    "pinned": lambda x, y: copy[(1,)](y.pin_memory(), x, 4, BLOCK=4),
    "lists": lambda x, y: torch._foreach_add([x, y], 1.0),
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("do", ALLOWED.values(), ids=ALLOWED)
def test_what_pytorch_lets_meet_may_meet(do: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
    do(torch.ones(4, device="cuda"), torch.ones(4))


@pytest.mark.usefixtures("gpu")
def test_what_is_moved_is_a_copy() -> None:
    x = torch.ones(4)
    y = x.cuda()
    y += 1
    assert x.tolist() == [1, 1, 1, 1] and y.cpu().tolist() == [2, 2, 2, 2]
    assert y.cuda() is y and x.cpu() is x


@pytest.mark.usefixtures("gpu")
def test_indices_of_the_gpu_are_none_for_the_host() -> None:
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        torch.ones(4)[torch.tensor([0], device="cuda")]


@pytest.mark.usefixtures("gpu")
def test_a_step_of_training_stays_on_the_gpu() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    with pytest.raises(RuntimeError, match="same device"):
        model(torch.ones(3, 4, device="cuda"))
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(
            model(torch.ones(3, 4, device="cuda")), torch.ones(3, 1, device="cuda")
        ).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    for x in model.parameters():
        y = torch.empty_like(x)
        copy[(1,)](x.grad, y, 1, BLOCK=1)
        assert x.is_cuda and x.grad is not None and x.grad.is_cuda
