"""Floating-point formats, and rounding to them in every mode."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnverify.ptx.kinds import Array

__all__ = [
    "BF16",
    "EIGHTHS",
    "F16",
    "F32",
    "FORMATS",
    "NAN",
    "TF32",
    "Format",
    "flush",
    "narrow",
    "narrow_to_eight_bits",
    "rounded",
    "widen",
]


@dataclass(frozen=True)
class Format:
    """
    A binary format: significant digits, and the exponents of its smallest and largest normal
    number.
    """

    digits: int
    least: int
    most: int

    @property
    def largest(self) -> float:
        return float(2.0**self.most * (2 - 2.0 ** (1 - self.digits)))

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return float(2.0**self.least)


F32, F16 = Format(24, -126, 127), Format(11, -14, 15)
BF16, TF32 = Format(8, -126, 127), Format(11, -126, 127)
E4M3, E5M2, E8M13 = Format(4, -6, 8), Format(3, -14, 15), Format(14, -126, 127)
FORMATS = {"f32": F32, "f16": F16, "bf16": BF16, "tf32": TF32}
FORMATS |= {"e4m3": E4M3, "e5m2": E5M2, "e8m13": E8M13}

NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "tf32": 0x7FFFFFFF, "f32": 0x7FFFFFFF}
"""The NaN that an instruction gives."""


MODES: dict[str, Callable[[Array], Array]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}
BEYOND: dict[str, Callable[[Array], Any]] = {
    "rn": lambda x: True,
    "rna": lambda x: True,
    "rz": lambda x: False,
    "rm": lambda x: x < 0,
    "rp": lambda x: x > 0,
}
"""Whether what is too large becomes infinite; otherwise it becomes the largest number."""


def rounded(x: Array, to: Format, mode: str = "rn") -> Array:
    """float64 numbers, rounded to a format with subnormals; still float64."""
    _, exponent = np.frexp(x)
    quantum = np.ldexp(1.0, np.maximum(exponent - 1, to.least) - (to.digits - 1))
    found = MODES[mode](x / quantum) * quantum
    over = (np.abs(found) > to.largest) & np.isfinite(x)
    if over.any():
        limit = np.where(BEYOND[mode](x), np.inf, to.largest)
        found = np.where(over, np.copysign(limit, x), found)
    return np.where(np.isfinite(x), found, x)


def widen(bits: Array, kind: str) -> Array:
    """float32 numbers of their bits in a format; exact."""
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind in EIGHTHS:
        return EIGHTHS[kind][bits]
    return bits.view(np.float32)


def numbers_of_eight_bits(kind: str) -> Array:
    """
    [256] float32 of all bytes. E4M3 has no infinities: the one pattern above 448 is NaN; E5M2 is
    the upper half of a float16.
    """
    bits = np.arange(256, dtype=np.uint16)
    if kind == "e5m2":
        return (bits << np.uint16(8)).view(np.float16).astype(np.float32)
    digits, exponent = bits & 7, (bits >> 3 & 15).astype(np.int32)
    size = np.ldexp(
        (digits + np.where(exponent > 0, 8, 0)).astype(np.float32), np.maximum(exponent, 1) - 10
    )
    size[bits & 127 == 127] = np.nan
    return np.where(bits > 127, -size, size).astype(np.float32)


EIGHTHS = {kind: numbers_of_eight_bits(kind) for kind in ("e4m3", "e5m2")}


def narrow_to_eight_bits(x: Array, kind: str) -> Array:
    """
    Give the bytes of float32 numbers, rounded to nearest even and held within the largest number;
    NaN is 127.
    """
    finite = EIGHTHS[kind][:128][np.isfinite(EIGHTHS[kind][:128])]
    held = np.clip(np.where(np.isnan(x), 0, x), -finite[-1], finite[-1])
    size = np.abs(rounded(held.astype(np.float64), FORMATS[kind]))
    found = np.searchsorted(finite, size).astype(np.uint8) | np.signbit(held).astype(np.uint8) << 7
    return np.where(np.isnan(x), np.uint8(127), found).astype(np.uint8)


def narrow(x: Array, kind: str, mode: str = "rn") -> Array:
    """
    Give the bits of numbers, rounded once to a format; NaN becomes the one that instructions give.
    """
    if kind == "bf16" and mode == "rn" and x.dtype == np.float32:
        return narrow_to_bf16(x)
    if mode != "rn" or kind in ("bf16", "tf32"):
        x = rounded(x.astype(np.float64), FORMATS[kind], mode)
    if kind == "f16":
        bits = x.astype(np.float16).view(np.uint16)
    elif kind == "bf16":
        bits = (x.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    else:
        bits = x.astype(np.float32).view(np.uint32)
    return np.where(np.isnan(x), bits.dtype.type(NAN[kind]), bits)


def narrow_to_bf16(x: Array) -> Array:
    """To nearest even, by adding just less than half of what is cut off."""
    bits = x.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    found = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(NAN["bf16"]), found)


def flush(x: Array, tiny: float = F32.tiny) -> Array:
    """Subnormal numbers become zeros of their sign."""
    small = np.abs(x) < x.dtype.type(tiny)
    return np.where(small, np.copysign(x.dtype.type(0), x), x) if small.any() else x
