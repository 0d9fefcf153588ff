"""
The arrays of a launch: whatever a framework holds in the memory of the host, placed on the
machine's device and brought back.
"""

import ctypes
from typing import Any

import numpy as np

from attnverify.ptx.kinds import Array
from attnverify.ptx.storage.device import Allocation, Memory

__all__ = ["HostArrays", "bytes_at"]


class HostArrays:
    """Stretches of host memory, each placed once however many arguments point into it."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.placed: list[tuple[int, Array, Allocation]] = []

    def place(self, start: int, size: int, label: str) -> None:
        """So many bytes from an address on; a stretch that is there already is not placed again."""
        if size and not any(
            at <= start and start + size <= at + len(bytes_) for at, bytes_, _ in self.placed
        ):
            bytes_ = bytes_at(start, size)
            self.placed.append((start, bytes_, self.memory.place(bytes_, label)))

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
        for _, bytes_, allocation in self.placed:
            if allocation.touched:
                bytes_[:] = allocation.contents


def bytes_at(start: int, size: int) -> Array:
    """Bytes of the host, as an array."""
    of: Any = (ctypes.c_ubyte * size).from_address(start)
    return np.frombuffer(of, np.uint8)
