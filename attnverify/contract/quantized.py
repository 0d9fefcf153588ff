"""Numbers of eight bits, their scales, and the format that the bits are of."""

from typing import Any

from attnverify.contract.arguments import check_integers
from attnverify.contract.arrays import Arrays
from attnverify.contract.shapes import check, pattern

SCALE = pattern("scale [... N]")
STORED_AS = ("float8_e4m3fn", "int8")


def check_stored(arrays: Arrays, stored: Any, scale: Any, stored_as: Any) -> None:
    """Hold what is stored to int8, with one scale for each row, and its format to those known."""
    at = check(arrays, SCALE, scale)
    D = next(iter(tuple(getattr(stored, "shape", ()))[-1:]), 1)
    if D == 0 or str(getattr(stored, "dtype", "")).removeprefix("torch.") != "int8":
        raise ValueError(
            f"stored: wanted int8 of shape [... N D] and sizes of at least 1, got "
            f"{arrays.describe(stored)}"
        )
    check_integers(arrays, "stored", stored, (*at["..."], at["N"], D))
    if not isinstance(stored_as, str) or stored_as not in STORED_AS:
        raise ValueError(f"stored_as: wanted {' or '.join(STORED_AS)}, got {stored_as!r}")
