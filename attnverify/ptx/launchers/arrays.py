"""
The arrays of a launch: whatever a framework holds in the memory of the host, placed on the
machine's device and brought back.
"""

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attnverify.ptx.kinds import Array
from attnverify.ptx.storage.device import Allocation, Memory

__all__ = ["HostArrays", "bytes_at"]


WRITTEN: list[Callable[[int, int], Array | None]] = []
"""
Those who know which of so many bytes from an address on were written: a view, that is written to;
None where all count as written.
"""


def written_in(start: int, size: int) -> Array | None:
    found = (know(start, size) for know in WRITTEN)
    return next((written for written in found if written is not None), None)


class HostArrays:
    """Stretches of host memory, each placed once however many arguments point into it."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.memory.find_outside = self.find
        self.placed: list[tuple[int, Array, Allocation]] = []
        self.known: list[tuple[Allocation, int]] = []
        """Those that were found by an address, and where they begin: nothing moves in a launch."""

    def place(self, start: int, size: int, label: str, edge: int | None = None) -> None:
        """
        So many bytes from an address on, ``edge`` bytes behind a multiple of 256, as they are on
        the host if it is not said; a stretch that is there already is not placed again.
        """
        if size and not any(
            at <= start and start + size <= at + len(bytes_) for at, bytes_, _ in self.placed
        ):
            bytes_, written = bytes_at(start, size), written_in(start, size)
            made = self.memory.place(bytes_, label, written is None, edge)
            if written is not None and made.written is not None:
                made.written[made.low : made.high] = written
            self.placed.append((start, bytes_, made))

    def find(self, pointer: int) -> tuple[Allocation, int] | str | None:
        """
        Find the array in which a pointer lies that a kernel has read from memory; place it, or say
        in words why no kernel may go there.
        """
        for known, start in self.known:
            if start <= pointer < start + known.high - known.low:
                return known, start
        if elsewhere := self.place_holding(pointer):
            return elsewhere
        for start, bytes_, allocation in self.placed:
            if start <= pointer < start + len(bytes_):
                self.known.append((allocation, start))
                return allocation, start
        return None

    def place_holding(self, pointer: int) -> str | None:
        for start, size, label, on_host in find_living():
            if start <= pointer < start + size:
                if on_host:
                    return f"an illegal memory access: byte {pointer - start} of {label} on the CPU"
                for first, end in self.gaps(start, start + size):
                    self.place(first, end - first, label)
        return None

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """What of a stretch is not placed yet."""
        for at, bytes_, _ in sorted(self.placed, key=lambda each: each[0]):
            if at < end and start < at + len(bytes_):
                rest = self.gaps(at + len(bytes_), end) if at + len(bytes_) < end else []
                return [(start, at), *rest] if start < at else rest
        return [(start, end)]

    def address(self, pointer: int) -> int:
        """
        Where a pointer into one of the stretches, or else right behind one, points on the device;
        others stay what they are.
        """
        for behind in (0, 1):
            for start, bytes_, allocation in self.placed:
                if start <= pointer < start + len(bytes_) + behind:
                    return allocation.address + pointer - start
        return pointer

    def bring_back(self) -> None:
        """Copy back what the kernel wrote."""
        for start, bytes_, allocation in self.placed:
            if allocation.touched:
                bytes_[:] = allocation.contents
            if allocation.touched and allocation.written is not None:
                written = written_in(start, len(bytes_))
                if written is not None:
                    written |= allocation.written[allocation.low : allocation.high]


def find_living() -> Iterator[tuple[int, int, str, bool]]:
    """List the bytes of PyTorch's tensors: address, size, what they are, whether on the host."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    sides = sys.modules.get("attnverify.ptx.launchers.tensors.sides")
    gc.unfreeze()  # what is frozen is not listed
    living = [x for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter)]
    gc.freeze()
    for tensor in living:
        if tensor.layout is torch.strided and tensor.is_cpu:
            storage = tensor.untyped_storage()
            on_host = sides is not None and sides.is_on_host(tensor)
            yield storage.data_ptr(), storage.nbytes(), f"a tensor {list(tensor.shape)}", on_host


def bytes_at(start: int, size: int) -> Array:
    """Bytes of the host, as an array."""
    of: Any = (ctypes.c_ubyte * size).from_address(start)
    return np.frombuffer(of, np.uint8)
