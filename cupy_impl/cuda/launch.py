"""Kernels where the arrays are: CuPy's on a GPU, NumPy's on the CPU."""

import functools
from typing import Any

import cupy

from ..arrays import numpy
from .emulation import compile_and_run
from .kernel_configs import Instance
from .source import text

__all__ = ["launch"]


def launch(
    made: Instance, kernel: str, grid: tuple[int, int], params: bytes, on_device: bool
) -> None:
    """Run a kernel of an instance over a grid of blocks."""
    if not on_device:
        compile_and_run.launch(made, kernel, grid, params)
        return
    function = compiled(made, kernel, cupy.cuda.Device().id)
    by_value = numpy.frombuffer(params, dtype=f"V{len(params)}")
    function(grid, (made.threads,), (by_value,), shared_mem=made.shared_bytes(kernel))


@functools.cache
def compiled(made: Instance, kernel: str, device: int) -> Any:
    """A kernel of an instance on a device; CuPy keeps the compiled binary on disk."""
    module = cupy.RawModule(code=text(made.source), options=("-std=c++17", *made.defines))
    function = module.get_function(kernel)
    function.max_dynamic_shared_size_bytes = made.shared_bytes(kernel)
    return function
