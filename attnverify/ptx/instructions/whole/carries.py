"""Sums that carry from one instruction to the next, and the upper halves of products."""

from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import Form, Step, instruction
from attnverify.ptx.kinds import BITS, Array

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = ["high_half", "sum_with_carry"]


def high_half(x: Array, y: Array) -> Array:
    """Compute the upper half of the product of all bits."""
    size = x.dtype.itemsize
    if size < 8:
        wide = np.dtype(f"{x.dtype.kind}{2 * size}")
        return (x.astype(wide) * y.astype(wide) >> wide.type(8 * size)).astype(x.dtype)
    mine = (x.view(np.uint64), y.view(np.uint64))
    high = high_unsigned(*mine)
    if x.dtype.kind == "i":  # a negative number is its pattern less 2^64
        high = high - np.where(x < 0, mine[1], 0) - np.where(y < 0, mine[0], 0)
    return high.view(x.dtype)


def high_unsigned(x: Array, y: Array) -> Array:
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    (a, b), (c, d) = (x >> half, x & low), (y >> half, y & low)
    middle = (b * d >> half) + (a * d & low) + (b * c & low)
    return a * c + (a * d >> half) + (b * c >> half) + (middle >> half)


def sum_with_carry(form: Form) -> Step:
    """
    ``add.cc``, ``addc``, ``sub.cc``, ``subc``, ``mad.cc``, ``madc``: a register of its own holds
    the carry (of a difference what was borrowed), which ``.cc`` writes and ``...c`` reads.
    """
    name, writes = form.name.removesuffix("c"), form.flag("cc")
    part = form.choice("lo", "hi") if name == "mad" else ""
    kind = form.kind("u32", "s32", "u64", "s64")
    form.expect(4 if name == "mad" else 3)
    bits = BITS[kind.size]
    sources = [form.read(place, kind) for place in range(1, len(form.operands))]
    put, carry, takes = form.write(0, kind), form.kernel.carry, form.name.endswith("c")

    def run(m: "Machine") -> None:
        *factors, last = (read(m) for read in sources)
        x, y = (each.view(bits) for each in (product(part, factors), last))
        before = (m.registers[carry] if takes else np.zeros(1, bool)).astype(bits)
        first = x - y if name == "sub" else x + y
        total = first - before if name == "sub" else first + before
        if writes:
            m.put(carry, over(name, x, y, first, total))
        put(m, total.view(kind.dtype))

    return run


def product(part: str, factors: list[Array]) -> Array:
    if not part:
        return factors[0]
    return high_half(*factors) if part == "hi" else np.multiply(*factors)


def over(name: str, x: Array, y: Array, first: Array, total: Array) -> Array:
    """Whether a sum, of two numbers or with the carry, left its bits; whether one was borrowed."""
    return (x < y) | (first < total) if name == "sub" else (first < x) | (total < first)


@instruction("addc", "subc", "madc")
def sum_of_more(form: Form) -> Step:
    return sum_with_carry(form)
