"""
The memory of the device: every array stands alone in 64 GiB of addresses, so that nothing lies
beside it.

An access that leaves its array is out of bounds, however far it goes; an address that was computed
in 32 bits is far from every array.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnverify.ptx.kinds import Array
from attnverify.ptx.storage.changes import Changes
from attnverify.ptx.storage.order import Order
from attnverify.ptx.storage.shadows import Shadow

__all__ = [
    "ALONE",
    "LOCAL_WINDOW",
    "PARAMETER_WINDOW",
    "SHARED_WINDOW",
    "Allocation",
    "Memory",
    "edge_of",
]

ALONE = 36
"""Each array has 2^36 addresses of its own."""

SHARED_WINDOW, LOCAL_WINDOW, PARAMETER_WINDOW = 1 << 56, 1 << 57, 1 << 58
"""Where generic addresses of shared and of local memory, and of the parameters, begin."""

EDGE = 256
"""Bytes to which a GPU aligns what it allocates."""

PIECE = 1 << 20
"""So many bytes of an array are copied at a time, those that hold nothing but zeros not at all."""


def edge_of(x: Array) -> int:
    """
    How far behind a multiple of 256 bytes an array begins, where NumPy's own arrays begin at one,
    as those do that a GPU allocates; of other memory the address on the host decides.
    """
    owner = x
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    start, first = (each.__array_interface__["data"][0] for each in (x, owner))
    return (start - first if owner.base is None else start) % EDGE


class Allocation:
    """
    One array of the device: its bytes between ``low`` and ``high``, which of them were written, and
    who touched them.
    """

    def __init__(self, label: str, start: int, low: int, size: int, written: bool) -> None:
        self.label, self.start, self.low, self.high = label, start, low, low + size
        length = (low + size + EDGE - 1) // EDGE * EDGE
        self.bytes = np.zeros(length, np.uint8) if written else np.full(length, 0xFF, np.uint8)
        self.written = None if written else np.zeros(len(self.bytes), bool)
        self.shadow: Shadow | None = None
        self.touched = False

    @property
    def address(self) -> int:
        return self.start + self.low

    def waits(self, offset: int) -> str:
        """In words, what whoever looks at an offset again and again waits for."""
        return f"{self.label} to change at byte {offset - self.low}"

    @property
    def contents(self) -> Array:
        """The bytes of the array; a view."""
        return self.bytes[self.low : self.high]

    def typed(self, dtype: np.dtype[Any]) -> Array:
        return self.bytes.view(dtype)

    def shadowed(self, unit: int, order: Order) -> Shadow:
        if self.shadow is None:
            self.shadow = Shadow(len(self.bytes) // unit, order=order)
        return self.shadow


class Memory:
    """All arrays of the device."""

    def __init__(self) -> None:
        self.arrays: list[Allocation] = []
        self.variables: dict[object, dict[str, int]] = {}
        self.changes = Changes()
        self.maps: set[int] = set()
        """Addresses of the tensor maps that kernels have written."""
        self.find_outside: Callable[[int], tuple[Allocation, int] | str | None] = lambda at: None
        """
        An array of the host by an address in it, placed here, and where it begins there; or in
        words why it cannot be.
        """

    def place(
        self, x: Array, label: str = "", initialised: bool = True, edge: int | None = None
    ) -> Allocation:
        """
        A copy of an array's bytes, ``edge`` bytes behind a multiple of 256. What nobody has written
        on the host takes no memory here either: an array may be larger than that.
        """
        if not x.flags.c_contiguous:
            raise ValueError(
                f"x: wanted an array in one piece, got strides {x.strides} for the shape {x.shape}"
            )
        made = self.reserve(x.nbytes, label, edge_of(x) if edge is None else edge, initialised)
        given, contents = x.reshape(-1).view(np.uint8), made.contents
        for at in range(0, len(given), PIECE):
            piece = given[at : at + PIECE]
            if not initialised or piece.view(np.bool_).any():
                contents[at : at + PIECE] = piece
        return made

    def reserve(
        self, size: int, label: str = "", low: int = 0, initialised: bool = False
    ) -> Allocation:
        """
        Reserve room for so many bytes, ``low`` bytes behind a multiple of 256; at first every byte
        is 255, NaN in every format, where it does not count as written.
        """
        if size >= 1 << (ALONE - 1):
            raise ValueError(f"size: wanted less than {1 << (ALONE - 1)} bytes, got {size}")
        made = Allocation(
            label or f"array {len(self.arrays)}",
            (len(self.arrays) + 1) << ALONE,
            low,
            size,
            initialised,
        )
        self.arrays.append(made)
        return made

    def at(self, address: int) -> Allocation | None:
        """Find the array in whose addresses this one lies, if any."""
        number = address >> ALONE
        return self.arrays[number - 1] if 0 < number <= len(self.arrays) else None

    def copy(self) -> "Memory":
        """Copy the arrays with their contents, touched by nobody."""
        made = Memory()
        made.variables = {module: dict(places) for module, places in self.variables.items()}
        for array in self.arrays:
            twin = made.reserve(array.high - array.low, array.label, array.low, initialised=True)
            twin.bytes[:] = array.bytes
            twin.written = None if array.written is None else array.written.copy()
        return made

    def forget_accesses(self) -> None:
        """A launch is over: what follows comes after it."""
        for array in self.arrays:
            array.shadow = None
