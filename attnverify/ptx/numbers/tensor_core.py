"""
What a tensor core does to a sum of products: it aligns, cuts off, and adds.

Nothing of this is documented by the maker. Published measurements agree that a group of products
and the accumulator are aligned to the largest exponent among them, cut off towards zero some bits
behind its point, added exactly, and that the sum is cut off towards zero when it becomes float32
and rounded to nearest when it becomes float16:

- M. Fasi, N. J. Higham, M. Mikaitis, S. Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ
  Computer Science 7:e330, 2021;
- F. A. Khattak, M. Mikaitis, "Accurate models of NVIDIA tensor cores", arXiv 2512.07004, 2025;
- MMA-Sim, the bit-accurate model of github.com/microsoft/MMA-Sim: 24 bits and half the products of
  m16n8k16 at a time on Ampere and Ada Lovelace, 25 bits and all of them on Hopper.

Numbers of 8 bits: MMA-Sim measured 13 bits behind the point, in the sum as well, 16 products at a
time on Ada Lovelace and all 32 of ``wgmma`` on Hopper, whose ``mma.sync`` widens them to halves.

Which products share a group is drawn, as no order is documented.
"""

from dataclasses import dataclass

import numpy as np

from attnverify.ptx.kinds import Array
from attnverify.ptx.numbers.formats import EIGHTHS, F32, FORMATS, rounded

__all__ = ["UNITS", "Unit", "multiply", "sum_format", "unit_of"]


@dataclass(frozen=True)
class Unit:
    """
    A generation: products of halves that are added at once (half as many of TF32), and bits kept
    behind the point.
    """

    group: int
    bits: int


UNITS = {80: Unit(8, 24), 90: Unit(16, 25)}


SMALL, SMALL_OF_GROUPS = Unit(16, 13), Unit(32, 13)
"""Of numbers of 8 bits: ``mma.sync`` of sm_89, and ``wgmma``."""


def unit_of(target: int, kind: str = "f16", of_group: bool = False) -> Unit:
    """
    Find the tensor cores of a target, or of the one before it, for factors of this format;
    ``of_group``: in products of warp groups.
    """
    if kind in EIGHTHS and (of_group or target < 90):
        return SMALL_OF_GROUPS if of_group else SMALL
    known = [arch for arch in UNITS if arch <= target]
    return UNITS[max(known, default=80)]


def sum_format(to: str, kind: str, unit: Unit) -> str:
    """Find what a sum of these factors is rounded to: float32 that units of 13 bits give has 13."""
    return "e8m13" if to == "f32" and kind in EIGHTHS and unit.bits == SMALL.bits else to


def multiply(
    left: Array,
    right: Array,
    c: Array,
    kind: str,
    unit: Unit,
    order: Array,
    result: str = "f32",
    right_kind: str = "",
) -> Array:
    """
    left [... M K] right [... N K] transposed + c [... M N], as a unit adds it.

    The factors are float32 numbers of the format ``kind``, the right one perhaps of another;
    ``order`` is a permutation of K. The result is float32, rounded to ``result``.
    """
    kinds = kind, right_kind or kind
    size = unit.group // (2 if kind == "tf32" else 1)
    for first in range(0, len(order), size):
        of = order[first : first + size]
        c = add_group(left[..., of], right[..., of], c, kinds, unit.bits, result)
    return c


def add_group(
    left: Array, right: Array, c: Array, kinds: tuple[str, str], bits: int, result: str
) -> Array:
    """Add one group of products to c."""
    a, b = k_first(left)[..., :, None], k_first(right)[..., None, :]
    top = largest_exponent(left, right, kinds, exponents_of(c, FORMATS[result].least))
    scale = power(bits - top)
    # in float32 products of halves and their multiples are exact, unless they come near its
    # smallest or largest numbers
    narrow = kinds[0] != "tf32" and bool(np.all(top > -90) and np.all(top < 100))
    if narrow:
        factor = scale.astype(np.float32)
    else:
        a, factor = a.astype(np.float64), scale
    total = np.trunc(c * scale)
    product, whole, part = (
        np.empty(factor.shape, factor.dtype),
        np.empty(factor.shape, np.int32),
        np.empty(factor.shape, np.int32),
    )
    for first in range(0, len(a), 8):
        part.fill(0)
        for k in range(first, min(first + 8, len(a))):
            np.multiply(a[k], b[k], out=product)
            product *= factor
            np.copyto(whole, product, casting="unsafe")  # which cuts off
            part += whole
        total += part
    return with_specials(rounded_result(total * power(top - bits), result), left, right, c, result)


def k_first(x: Array) -> Array:
    """[... M K] as [K ... M], each row in one piece."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 0))


def largest_exponent(left: Array, right: Array, kinds: tuple[str, str], top: Array) -> Array:
    """Of the products and of what ``top`` brings along."""
    of_left, of_right = (
        k_first(exponents_of(x, FORMATS[kind].least))
        for x, kind in zip((left, right), kinds, strict=True)
    )
    for k in range(len(of_left)):
        np.maximum(top, of_left[k][..., :, None] + of_right[k][..., None, :], out=top)
    return np.maximum(top, LEAST)


def with_specials(found: Array, left: Array, right: Array, c: Array, result: str) -> Array:
    """Where NaN or infinity takes part, the sum of IEEE 754."""
    rows, columns = (np.asarray(~np.isfinite(x).all(-1)) for x in (left, right))
    special = rows[..., :, None] | columns[..., None, :] | ~np.isfinite(c)
    if not special.any():
        return found
    plain = (left.astype(np.float64)[..., :, None, :] * right[..., None, :, :]).sum(-1) + c
    return np.where(special, rounded_result(plain, result), found)


NONE, LEAST = np.int16(-2000), np.int16(-300)
"""
The exponent of zero, which aligns nothing; and the least that anything is aligned to, below all
products.
"""


def exponents_of(x: Array, least: int) -> Array:
    """
    Compute the exponent of each number in its format, whose subnormals have that of the least
    normal one.
    """
    field = ((x.view(np.uint32) >> np.uint32(23)) & np.uint32(0xFF)).astype(np.int16) - np.int16(
        127
    )
    return np.where(x == 0, NONE, np.maximum(field, np.int16(least)))


def rounded_result(x: Array, result: str) -> Array:
    """Round the float64 sum to the format of the result, as float32."""
    if result == "f16":
        return x.astype(np.float16).astype(np.float32)
    # towards zero: without the digits that the format has no room for
    found = (x.view(np.uint64) & ROOM[result]).view(np.float64).astype(np.float32)
    if np.count_nonzero(np.abs(found) < F32.tiny) > np.count_nonzero(x == 0):
        return rounded(x, FORMATS[result], "rz").astype(np.float32)
    return found


ROOM = {"f32": np.uint64(2**64 - 2**29), "e8m13": np.uint64(2**64 - 2**39)}


def power(exponent: Array) -> Array:
    """2 to whole numbers, as float64."""
    return ((exponent.astype(np.int64) + 1023) << 52).view(np.float64)
