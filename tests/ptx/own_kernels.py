"""
This project's own kernels on the machine: the one place that knows where they live and how they are
launched.

When the columns move, or run on the machine by themselves, this module is what changes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch

import numpy_ref
from attnverify.ptx.kernel import Module, Recorded
from attnverify.ptx.launchers import cuda, nvrtc
from attnverify.ptx.launchers.triton import Driver, on_machine
from cupy_impl import cuda_additive, cuda_attention
from cupy_impl.kernels import arguments, instances, source
from numpy_ref import alibi, attention, relative
from torch_impl import triton_additive, triton_attention
from torch_impl.kernels import additive_operators, blocks, operators

__all__ = [
    "CASES",
    "Case",
    "cuda_on_machine",
    "run_cuda",
    "run_reference",
    "run_triton",
    "triton_on_machine",
]

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
B, H, N, M, D, E = 1, 2, 70, 133, 64, 64


@dataclass(frozen=True)
class Case:
    """An operation with drawn inputs."""

    operation: str
    shapes: tuple[tuple[int, ...], ...]
    options: tuple[str, ...] = ()

    def inputs(self, dtype: str, seed: int = 0) -> list[np.ndarray]:
        random = np.random.default_rng(seed)
        return [random.standard_normal(shape).astype(DTYPES[dtype]) for shape in self.shapes]

    def extra(self, dtype: str) -> dict[str, Any]:
        """Masks, dropout and alignment."""
        random, found = np.random.default_rng(1), {}
        if "visible" in self.options:
            found["mask"] = random.random((N, M)) < 0.8
        if "added" in self.options:
            found["mask"] = random.standard_normal((B, H, N, M)).astype(DTYPES[dtype])
        if "dropout" in self.options:
            found |= {"keep": random.random((B, H, N, M)) < 0.75, "p": 0.25}
        return found | ({"align": "end"} if "end" in self.options else {})


HEADS = ((B, H, N, D), (B, H, M, D), (B, H, M, E))
CASES = {
    "plain": Case("scaled_dot_product_attention", HEADS),
    "visible": Case("scaled_dot_product_attention", HEADS, ("visible",)),
    "added mask, dropout": Case("scaled_dot_product_attention", HEADS, ("added", "dropout")),
    "ALiBi": Case("alibi_attention", HEADS),
    "Transformer-XL": Case("transformer_xl_attention", (*HEADS, (H, M, D), (H, D), (H, D))),
    "learned": Case(
        "learned_relative_attention", (*HEADS, (2 * M, H, D), (2 * M, H), (H, D)), ("end",)
    ),
    "additive": Case(
        "additive_attention", ((B, 40, 24), (B, 72, 24), (B, 72, 32), (32, 24), (32, 24), (32,))
    ),
}


def run_reference(case: Case, dtype: str) -> list[np.ndarray]:
    """The output and the gradients of the inputs, in float64."""
    module = next(
        module for module in (attention, alibi, relative) if hasattr(module, case.operation)
    )
    wide = [x.astype(np.float64) for x in case.inputs(dtype)]
    extra = {
        name: x.astype(np.float64) if name == "mask" and x.dtype != bool else x
        for name, x in case.extra(dtype).items()
    }
    output = getattr(module, case.operation)(*wide, **extra)
    d_output = gradient_of_output(output.shape, dtype).astype(np.float64)
    return [output, *getattr(module, f"{case.operation}_grad")(d_output, *wide, **extra)]


def gradient_of_output(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(shape).astype(DTYPES[dtype])


# Triton


@contextmanager
def triton_on_machine(target: int, **settings: Any) -> Iterator[Driver]:
    """The kernels of torch_impl for this target, with the blocks of its table, on CPU tensors."""

    def launch(kernel: Any, grid: Any, *args: Any, **constants: Any) -> None:
        kernel[grid](*args, **constants)

    def of(
        kernel: str, scores: str, like: torch.Tensor, lengths: tuple[int, int], widest: int
    ) -> blocks.Blocks:
        return blocks.of_gpu(kernel, scores, like.dtype.itemsize == 2, widest, target)

    before = [
        (module, name, getattr(module, name))
        for module in (operators, additive_operators)
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
        return torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(x.copy())


# CUDA C++

SEEN: list[np.ndarray] = []


def compiled(made: instances.Instance, target: int, ftz: bool) -> Module:
    options = (
        "-std=c++17",
        *made.defines,
        "--device-as-default-execution-space",
        *(["-ftz=true"] if ftz else []),
    )
    return nvrtc.compile_source(source.text(made.source), options, target)


@contextmanager
def cuda_on_machine(
    target: int, ftz: bool = False, record: list[Recorded] | None = None, **settings: Any
) -> Iterator[None]:
    """
    The kernels of cupy_impl with the blocks of a device and the options of its launcher, on NumPy
    arrays.
    """

    def tensor(x: Any, name: str, axes: str = "bhij") -> tuple[int, ...]:
        if x is not None:
            SEEN.append(x)
        return arguments.tensor(x, name, axes)

    def launch(
        made: instances.Instance, kernel: str, grid: tuple[int, int], params: bytes, on_device: bool
    ) -> None:
        arrays = [x if x.base is None else owner(x) for x in SEEN]
        settings_ = {"shared": made.shared_bytes(kernel), "record": record} | settings
        cuda.launch(
            compiled(made, target, ftz)[kernel],
            grid,
            made.threads,
            [params],
            arrays=arrays,
            **settings_,
        )
        SEEN.clear()

    def instance(
        source: str, dtype: str, widest: int, relative: bool, masked: bool, on_device: bool
    ) -> instances.Instance:
        return instances.instance(source, dtype, widest, relative, masked, True)

    changed = {"tensor": tensor, "launch": launch, "instance": instance}
    before = [
        (module, name, getattr(module, name))
        for module in (cuda_attention, cuda_additive)
        for name in changed
    ]
    for module, name, _ in before:
        setattr(module, name, changed[name])
    try:
        yield
    finally:
        for module, name, x in before:
            setattr(module, name, x)


def owner(x: np.ndarray) -> np.ndarray:
    """The array that holds the memory of a view."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def run_cuda(case: Case, dtype: str) -> list[np.ndarray]:
    """The output and the gradients of the inputs."""
    module = cuda_additive if case.operation.startswith("additive") else cuda_attention
    given, extra = case.inputs(dtype), case.extra(dtype)
    output = getattr(module, f"{case.operation}_cuda")(*given, **extra)
    d_output = gradient_of_output(output.shape, dtype)
    grads = getattr(module, f"{case.operation}_grad_cuda")(d_output, *given, **extra)
    return [np.asarray(x, np.float64) for x in (output, *grads)]


assert numpy_ref  # the column against which both are held
