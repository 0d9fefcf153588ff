"""Bits: logic, shifts, and fields of bits."""

from collections.abc import Callable

import numpy as np

from attnverify.ptx.decode import Form, Step, instruction
from attnverify.ptx.kinds import BITS, Array

__all__: list[str] = []

WHOLE = [f"{letter}{bits}" for letter in "us" for bits in (16, 32, 64)]
PLAIN = ["b16", "b32", "b64"]

LOGIC: dict[str, Callable[..., Array]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
}


@instruction("and", "or", "xor", "not")
def logic(form: Form) -> Step:
    form.expect(2 if form.name == "not" else 3)
    kind = form.kind("pred", *PLAIN)
    return form.result(
        kind, LOGIC[form.name], [form.read(place, kind) for place in range(1, len(form.operands))]
    )


@instruction("cnot")
def logical_not(form: Form) -> Step:
    form.expect(2)
    kind = form.kind(*PLAIN)
    return form.result(kind, lambda x: (x == 0).astype(x.dtype), [form.read(1, kind)])


@instruction("lop3")
def logic_of_three(form: Form) -> Step:
    """Any function of three bits, by its table."""
    form.expect(5)
    kind, table = form.kind("b32"), form.whole(4)
    if not 0 <= table <= 255:
        raise form.refuse(f"a table of three bits has a number below 256, not {table}")
    terms = [bit for bit in range(8) if table >> bit & 1]

    def function(a: Array, b: Array, c: Array) -> Array:
        found = np.zeros(1, np.uint32)
        for bit in terms:
            found = found | (a if bit & 4 else ~a) & (b if bit & 2 else ~b) & (c if bit & 1 else ~c)
        return found

    return form.result(kind, function, [form.read(place, kind) for place in (1, 2, 3)])


@instruction("shl", "shr")
def shift(form: Form) -> Step:
    """Shifts by more than there are bits give 0, or the sign."""
    form.expect(3)
    kind = form.kind(*PLAIN, *(WHOLE if form.name == "shr" else ()))
    function = shifted_left if form.name == "shl" else shifted_right
    return form.result(kind, function, [form.read(1, kind), form.read(2, "u32")])


def shifted_left(x: Array, by: Array) -> Array:
    bits = 8 * x.dtype.itemsize
    if by.size == 1:
        return x << x.dtype.type(by[0]) if by[0] < bits else np.zeros_like(x)
    found = x << np.minimum(by, np.uint32(bits - 1)).astype(x.dtype)
    return np.where(by < bits, found, x.dtype.type(0))


def shifted_right(x: Array, by: Array) -> Array:
    bits = 8 * x.dtype.itemsize
    found = x >> np.minimum(by, np.uint32(bits - 1)).astype(x.dtype)
    return found if x.dtype.kind == "i" else np.where(by < bits, found, x.dtype.type(0))


@instruction("shf")
def funnel_shift(form: Form) -> Step:
    """32 of the 64 bits of two registers; shifts of more than 32 are held at 32, or wrap around."""
    form.expect(4)
    side, mode = form.choice("l", "r"), form.choice("clamp", "wrap")
    form.kind("b32")

    def function(low: Array, high: Array, by: Array) -> Array:
        count = (np.minimum(by, np.uint32(32)) if mode == "clamp" else by & np.uint32(31)).astype(
            np.uint64
        )
        whole = high.astype(np.uint64) << np.uint64(32) | low
        whole = whole >> np.uint64(32) - count if side == "l" else whole >> count
        return whole.astype(np.uint32)

    return form.result("b32", function, [form.read(place, "b32") for place in (1, 2, 3)])


# fields of bits


@instruction("bfe")
def extract_field(form: Form) -> Step:
    form.expect(4)
    kind = form.kind("u32", "u64", "s32", "s64")
    bits = 8 * kind.size

    def function(x: Array, position: Array, length: Array) -> Array:
        start, count = (part & np.uint32(0xFF) for part in (position, length))
        shifted = shifted_right(x, np.minimum(start, np.uint32(bits)))
        room = np.uint32(bits) - np.minimum(count, np.uint32(bits))
        last = np.minimum(start + count, np.uint32(bits)) - np.uint32(1)
        cut = shifted_right(shifted_left(shifted, room), room)
        if kind.signed:  # beyond the top, the sign of the field is that of x
            cut = np.where(start + count > bits, shifted_right(x, np.minimum(start, last)), cut)
        return np.where(count == 0, x.dtype.type(0), cut)

    return form.result(
        kind, function, [form.read(1, kind), form.read(2, "u32"), form.read(3, "u32")]
    )


@instruction("bfi")
def insert_field(form: Form) -> Step:
    form.expect(5)
    kind = form.kind("b32", "b64")
    bits = 8 * kind.size

    def function(field: Array, into: Array, position: Array, length: Array) -> Array:
        start, count = (
            np.minimum(part & np.uint32(0xFF), np.uint32(bits)) for part in (position, length)
        )
        ones = ~shifted_left(np.full_like(into, ~into.dtype.type(0)), count)
        mask = shifted_left(ones, start)
        return (into & ~mask) | (shifted_left(field, start) & mask)

    return form.result(
        kind,
        function,
        [form.read(1, kind), form.read(2, kind), form.read(3, "u32"), form.read(4, "u32")],
    )


@instruction("bmsk")
def mask_of_bits(form: Form) -> Step:
    form.expect(3)
    mode = form.choice("clamp", "wrap")
    form.kind("b32")

    def function(position: Array, length: Array) -> Array:
        if mode == "wrap":
            position, length = position & np.uint32(31), length & np.uint32(31)
        ones = ~shifted_left(np.full_like(length, 0xFFFFFFFF), length)
        return shifted_left(ones, position)

    return form.result("b32", function, [form.read(1, "b32"), form.read(2, "b32")])


@instruction("popc", "clz", "brev", "bfind")
def count_bits(form: Form) -> Step:
    form.expect(2)
    if form.name == "bfind":
        kind = form.kind("u32", "u64", "s32", "s64")
        amount = form.flag("shiftamt")
        return form.result("u32", lambda x: highest_bit(x, amount), [form.read(1, kind)])
    kind = form.kind("b32", "b64")
    if form.name == "brev":
        return form.result(kind, reversed_bits, [form.read(1, kind)])
    function = np.bitwise_count if form.name == "popc" else leading_zeros
    return form.result("u32", lambda x: function(x).astype(np.uint32), [form.read(1, kind)])


def leading_zeros(x: Array) -> Array:
    bits = 8 * x.dtype.itemsize
    for shift in (1, 2, 4, 8, 16, 32)[: bits.bit_length() - 1]:
        x = x | x >> x.dtype.type(shift)
    return bits - np.bitwise_count(x).astype(np.int64)


def highest_bit(x: Array, amount: bool) -> Array:
    """
    Find the place of the highest bit that differs from the sign, or how far it is from the top; all
    bits set if there is none.
    """
    pattern = (np.where(x < 0, ~x, x) if x.dtype.kind == "i" else x).view(BITS[x.dtype.itemsize])
    zeros = leading_zeros(pattern)
    found = zeros if amount else 8 * x.dtype.itemsize - 1 - zeros
    return np.where(pattern == 0, 0xFFFFFFFF, found).astype(np.uint32)


def reversed_bits(x: Array) -> Array:
    bits = np.unpackbits(x.view(np.uint8).reshape(-1, x.dtype.itemsize)[:, ::-1], axis=1)
    return np.packbits(bits, axis=1, bitorder="little").reshape(-1).view(x.dtype)


@instruction("prmt")
def permute_bytes(form: Form) -> Step:
    """Four of the eight bytes of two registers, each as it is or its sign alone."""
    form.expect(4)
    form.kind("b32")

    def function(a: Array, b: Array, selector: Array) -> Array:
        whole = b.astype(np.uint64) << np.uint64(32) | a
        found = np.zeros(1, np.uint32)
        for place in range(4):
            which = selector >> np.uint32(4 * place)
            byte = (
                whole >> (which & np.uint32(7)).astype(np.uint64) * np.uint64(8) & np.uint64(255)
            ).astype(np.uint32)
            sign = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
            found = found | np.where(which & np.uint32(8), sign, byte) << np.uint32(8 * place)
        return found

    return form.result("b32", function, [form.read(place, "b32") for place in (1, 2, 3)])
