"""Rotary positions: pairs of channels, the frequencies they turn by, and where a row stands."""

from typing import Any

from attnverify.contract.arguments import check_finite, check_integer, check_integers
from attnverify.contract.arrays import Arrays
from attnverify.contract.shapes import check, pattern

ROTATED, FREQUENCIES = pattern("x [B H N D]"), pattern("frequencies? [R]")
D_ROTATED = pattern("d_output [B H N D]")


def check_rotary(
    arrays: Arrays,
    x: Any,
    positions: Any,
    pairing: Any,
    base: Any,
    rotary_dim: Any,
    frequencies: Any,
) -> dict[str, Any]:
    """Hold x, its positions and what they turn by to their sizes; R is the number of pairs."""
    at = check(arrays, ROTATED, x)
    if positions is None:
        raise ValueError("positions: wanted integers of shape [B N], got None")
    check_integers(arrays, "positions", positions, (at["B"], at["N"]))
    if pairing not in ("halves", "interleaved"):
        raise ValueError(f"pairing: wanted 'halves' or 'interleaved', got {pairing!r}")
    check_finite("base", base)
    if base is None or base <= 0:
        raise ValueError(f"base: wanted a positive number, got {base!r}")
    at["R"] = pairs_of(arrays, at["D"], rotary_dim)
    return check(arrays, FREQUENCIES, frequencies, **at)


def pairs_of(arrays: Arrays, D: int, rotary_dim: Any) -> int:
    """Hold how many channels turn to the even numbers up to D; half as many pairs."""
    if rotary_dim is None:
        if D % 2:
            raise ValueError(f"rotary_dim: wanted an even number of at most D={D}, got None")
        return D // 2
    check_integer(arrays, "rotary_dim", rotary_dim, least=2)
    if rotary_dim % 2 or rotary_dim > D:
        raise ValueError(f"rotary_dim: wanted an even number of at most D={D}, got {rotary_dim}")
    return int(rotary_dim) // 2
