"""The Triton kernels of torch_impl, compiled and executed on the machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import torch

from attnverify.ptx.launchers.triton import Driver, on_machine
from attnverify.torch_impl.triton import additive as triton_additive
from attnverify.torch_impl.triton import additive_operators, cached_operators, operators
from attnverify.torch_impl.triton import attention as triton_attention
from attnverify.torch_impl.triton.kernels import block_sizes
from tests.ptx.own_kernels.cases import Case, gradient_of_output


@contextmanager
def triton_on_machine(target: int, **settings: Any) -> Iterator[Driver]:
    """The kernels of torch_impl for this target, with the blocks of its table, on CPU tensors."""

    def launch(kernel: Any, grid: Any, *args: Any, aligned: bool, **constants: Any) -> None:
        kernel[grid](*args, **constants)

    def of(
        kernel: str, scores: str, like: torch.Tensor, lengths: tuple[int, int], widest: int
    ) -> block_sizes.Blocks:
        return block_sizes.of_gpu(kernel, scores, like.dtype.itemsize == 2, widest, target)

    before = [
        (module, name, getattr(module, name))
        for module in (operators, additive_operators, cached_operators)
        for name in ("launch", "blocks")
    ]
    for module, name, _ in before:
        setattr(module, name, launch if name == "launch" else of)
    try:
        with on_machine(target, **settings) as driver:
            yield driver
    finally:
        for module, name, x in before:
            setattr(module, name, x)


def run_triton(case: Case, dtype: str) -> list[np.ndarray]:
    """The output and the gradients of the inputs."""
    module = triton_additive if case.operation.startswith("additive") else triton_attention
    function = getattr(module, f"{case.operation}_triton")
    tensors = [as_tensor(x).requires_grad_() for x in case.inputs(dtype)]
    extra = {
        name: as_tensor(x) if isinstance(x, np.ndarray) else x
        for name, x in case.extra(dtype).items()
    }
    wanted = list(tensors)
    if "added" in case.options:
        wanted.append(extra["mask"].requires_grad_())
    output = function(*tensors, **extra)
    grads = torch.autograd.grad(output, wanted, as_tensor(gradient_of_output(output.shape, dtype)))
    return [x.detach().double().numpy() for x in (output, *grads)]


def as_tensor(x: np.ndarray) -> torch.Tensor:
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)
