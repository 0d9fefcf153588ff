"""
What a kernel is given: one struct of tensors of four axes, as ``Tensor`` says, then whole numbers,
then float32 numbers.

What no kernel can do is refused here with NotImplementedError, before anything runs.
"""

import ctypes
import struct
from typing import Any

import cupy

from ..arrays import Array
from .kernel_configs import WIDEST

__all__ = [
    "blank",
    "check_lengths",
    "check_supported",
    "check_width",
    "has_rows",
    "is_added",
    "packed",
    "spread",
    "tensor",
]

LONGEST = 65535 * 16
"""
Rows of a query or key: as many blocks as a grid takes along its second axis, of the smallest size.
"""

ABSENT = (0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def tensor(x: Array | None, name: str, axes: str = "bhij") -> tuple[int, ...]:
    """
    An array as a kernel sees it; ``axes`` places its own among the four, those left out have the
    size 1.
    """
    if x is None:
        return ABSENT
    sizes, strides = [1, 1, 1, 1], [0, 0, 0, 0]
    for axis, size, stride in zip(axes, x.shape, x.strides, strict=True):
        place = "bhij".index(axis)
        sizes[place], strides[place] = size, stride // x.itemsize
    return address(x), *sizes, *strides, name_of(name)


def address(x: Array) -> int:
    return int(x.data.ptr) if isinstance(x, cupy.ndarray) else int(x.__array_interface__["data"][0])


NAMES: dict[str, Any] = {}


def name_of(name: str) -> int:
    """The address of a name that stays where it is."""
    kept = NAMES.setdefault(name, ctypes.create_string_buffer(name.encode()))
    return ctypes.addressof(kept)


def packed(tensors: list[tuple[int, ...]], whole: list[int], real: list[float]) -> bytes:
    flat = [number for x in tensors for number in x]
    size = struct.calcsize(layout := f"{len(flat)}q{len(whole)}i{len(real)}f")
    return struct.pack(f"{layout}{-size % 8}x", *flat, *whole, *real)


def spread(x: Array | None, shape: tuple[int, ...]) -> Array | None:
    return x if x is None else cupy.get_array_module(x).broadcast_to(x, shape)


def blank(shape: tuple[int, ...], like: Array, dtype: Any = None) -> Array:
    """
    An array for a kernel to fill; on the CPU it is NaN first, so that what a kernel leaves out is
    seen.
    """
    xp = cupy.get_array_module(like)
    made = xp.empty(shape, dtype or like.dtype)
    if xp is not cupy:
        made.fill(float("nan"))
    return made


def check_supported(*floats: Array | None, others: tuple[Array | None, ...] = ()) -> None:
    """Say what no kernel can do."""
    given = [x for x in (*floats, *others) if x is not None]
    names = {x.dtype.name for x in floats if x is not None}
    if len(names) > 1:
        raise NotImplementedError(f"inputs of different dtypes: {', '.join(sorted(names))}")
    if "float64" in names:
        raise NotImplementedError("the kernels compute in float32: no float64")
    if len({cupy.get_array_module(x) for x in given}) > 1:
        raise NotImplementedError("some arrays on a GPU, some not")
    if any(x.device != cupy.cuda.Device() for x in given if isinstance(x, cupy.ndarray)):
        raise NotImplementedError("arrays on another GPU than the current one")
    if any(stride % x.itemsize for x in given for stride in x.strides):
        raise NotImplementedError("strides that are no multiple of an element")
    if any(size >= 2**31 for x in given for size in x.shape):
        raise NotImplementedError("axes of 2^31 elements or more")


def has_rows(mask: Array | None) -> bool:
    """Whether a mask [... N M] may show one row what it hides from another."""
    return mask is not None and mask.ndim > 1 and mask.shape[-2] > 1


def is_added(mask: Array | None) -> bool:
    """Whether a mask is one of floats, which has a gradient."""
    return mask is not None and mask.dtype != bool


def check_lengths(*lengths: int) -> None:
    if max(lengths) > LONGEST:
        raise NotImplementedError(
            f"more than {LONGEST} queries or keys: a grid has no room for their blocks"
        )


def check_width(*widths: int) -> None:
    if max(widths) > WIDEST:
        raise NotImplementedError(
            f"heads wider than {WIDEST}: a block would not fit into a GPU's shared memory"
        )
