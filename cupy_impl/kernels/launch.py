"""
Kernels where the arrays are: CuPy's on a GPU, NumPy's on the CPU.

The parameters of a kernel are one struct: tensors of four axes as ``Tensor`` says, then whole numbers, then float32 numbers.
"""

import ctypes
import functools
import struct
from collections.abc import Mapping
from typing import Any

import cupy

from cupy_impl.arrays import Array, numpy
from cupy_impl.kernels import host
from cupy_impl.kernels.instances import Instance
from cupy_impl.kernels.source import text

__all__ = ["launch", "packed", "tensor"]

ABSENT = (0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def tensor(x: Array | None, name: str, axes: str = "bhij") -> tuple[int, ...]:
    """An array as a kernel sees it; ``axes`` places its own among the four, those left out have the size 1."""
    if x is None:
        return ABSENT
    size, stride = dict(zip(axes, x.shape, strict=True)), dict(zip(axes, x.strides, strict=True))
    sizes = (size.get(axis, 1) for axis in "bhij")
    strides = (stride.get(axis, 0) // x.itemsize for axis in "bhij")
    return address(x), *sizes, *strides, name_of(name)


def address(x: Array) -> int:
    return int(x.data.ptr) if isinstance(x, cupy.ndarray) else int(x.ctypes.data)


NAMES: dict[str, Any] = {}


def name_of(name: str) -> int:
    """The address of a name that stays where it is."""
    kept = NAMES.setdefault(name, ctypes.create_string_buffer(name.encode()))
    return ctypes.addressof(kept)


def packed(tensors: list[tuple[int, ...]], whole: list[int], real: list[float]) -> bytes:
    flat = [number for x in tensors for number in x]
    size = struct.calcsize(layout := f"{len(flat)}q{len(whole)}i{len(real)}f")
    return struct.pack(f"{layout}{-size % 8}x", *flat, *whole, *real)


def launch(made: Instance, kernel: str, grid: tuple[int, int], params: bytes, on_device: bool) -> None:
    """Run a kernel of an instance over a grid of blocks."""
    if not on_device:
        host.launch(made, kernel, grid, params)
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
