"""The types of PTX: how wide they are, and the NumPy type that holds their bits."""

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["BITS", "KINDS", "SIGNED", "Array", "Kind", "in_units", "viewed"]

Array = np.ndarray[Any, np.dtype[Any]]

BITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
"""Unsigned NumPy types by their bytes."""

SIGNED = {size: np.dtype(f"i{size}") for size in (1, 2, 4, 8)}


@dataclass(frozen=True)
class Kind:
    """A type: its bytes (0 for a predicate), its NumPy type, and how many numbers it packs."""

    name: str
    size: int
    dtype: np.dtype[Any]
    packed: int = 1

    @property
    def floating(self) -> bool:
        return "f" in self.name

    @property
    def signed(self) -> bool:
        return self.name[0] == "s"

    @property
    def element(self) -> str:
        """The name of one of the numbers that it packs."""
        return self.name.removesuffix("x2")


def made() -> dict[str, Kind]:
    found = [
        Kind("pred", 0, np.dtype(bool)),
        Kind("f32", 4, np.dtype("f4")),
        Kind("f64", 8, np.dtype("f8")),
    ]
    found += [Kind("f16", 2, np.dtype("f2")), Kind("bf16", 2, BITS[2]), Kind("tf32", 4, BITS[4])]
    found += [Kind("f16x2", 4, BITS[4], 2), Kind("bf16x2", 4, BITS[4], 2)]
    for size in (1, 2, 4, 8):
        found += [Kind(f"{letter}{8 * size}", size, BITS[size]) for letter in "bu"]
        found.append(Kind(f"s{8 * size}", size, SIGNED[size]))
    return {kind.name: kind for kind in found}


KINDS = made()


def viewed(x: Array, dtype: np.dtype[Any]) -> Array:
    """View the bits as another type of the same width."""
    return x if x.dtype == dtype else x.view(dtype)


def in_units(offsets: Array, size: int) -> Array:
    """Count bytes in units of a power of two: a shift costs a seventh of NumPy's quotient."""
    return offsets >> (size.bit_length() - 1)
