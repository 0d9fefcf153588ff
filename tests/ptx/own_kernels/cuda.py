"""The CUDA C++ kernels of cupy_impl, compiled and executed on the machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from attnverify.cupy_impl.cuda import additive as cuda_additive
from attnverify.cupy_impl.cuda import attention as cuda_attention
from attnverify.cupy_impl.cuda import kernel_arguments, kernel_configs, launch, source
from attnverify.ptx.kernel import Module, Recorded
from attnverify.ptx.launchers import cuda, nvrtc
from tests.ptx.own_kernels.cases import Case, gradient_of_output

SEEN: list[np.ndarray] = []


def compiled(made: kernel_configs.Instance, target: int, ftz: bool) -> Module:
    options = (*launch.options(made), *(["-ftz=true"] if ftz else []))
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
        return kernel_arguments.tensor(x, name, axes)

    def run(
        made: kernel_configs.Instance,
        kernel: str,
        grid: tuple[int, int],
        params: bytes,
        on_device: bool,
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
    ) -> kernel_configs.Instance:
        return kernel_configs.instance(source, dtype, widest, relative, masked, True)

    changed = {"tensor": tensor, "launch": run, "instance": instance}
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
