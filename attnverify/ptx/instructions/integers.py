"""Whole numbers and bits: arithmetic, logic, shifts, fields of bits."""

from collections.abc import Callable

import numpy as np

from attnverify.ptx.decode import Form, Step, instruction
from attnverify.ptx.instructions.floats import FLOATING, float_arithmetic
from attnverify.ptx.kinds import BITS, KINDS, Array, Kind

__all__: list[str] = []

Function = Callable[..., Array]

WHOLE = [f"{letter}{bits}" for letter in "us" for bits in (16, 32, 64)]
PLAIN = ["b16", "b32", "b64"]


def by_type(whole: Callable[[Form], Step]) -> Callable[[Form], Step]:
    """Instructions of one name for whole numbers and for floating-point ones."""

    def build(form: Form) -> Step:
        return (
            float_arithmetic(form)
            if any(name in FLOATING for name in form.modifiers)
            else whole(form)
        )

    return build


@instruction("add", "sub")
@by_type
def add(form: Form) -> Step:
    """``add.sat.s32`` stays within 32 bits; all others wrap around."""
    form.expect(3)
    saturated = form.flag("sat")
    kind = form.kind(*(["s32"] if saturated else WHOLE))
    function: Callable[[Array, Array], Array] = np.add if form.name == "add" else np.subtract
    return form.result(
        kind,
        saturating(function) if saturated else function,
        [form.read(1, kind), form.read(2, kind)],
    )


def saturating(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda x, y: np.clip(
        function(x.astype(np.int64), y.astype(np.int64)), -(2**31), 2**31 - 1
    ).astype(np.int32)


@instruction("mul", "mad")
@by_type
def multiply(form: Form) -> Step:
    """The low half of a product, its high half, or all of it; for ``mad`` plus a third operand."""
    form.expect(3 if form.name == "mul" else 4)
    part = form.choice("lo", "hi", "wide")
    kind = form.kind(*WHOLE)
    to = KINDS[f"{kind.name[0]}{16 * kind.size}"] if part == "wide" else kind
    if kind.size == 8 and part == "wide":
        raise form.refuse("a product of 128 bits")
    product: Function = {"lo": np.multiply, "hi": high_half, "wide": wide_product(to)}[part]  # type: ignore[assignment]
    sources = [form.read(1, kind), form.read(2, kind)]
    if form.name == "mul":
        return form.result(to, product, sources)
    return form.result(to, plus(product), [*sources, form.read(3, to)])


def plus(product: Function) -> Function:
    """The product of two numbers plus a third."""
    return lambda x, y, z: product(x, y) + z


def wide_product(to: Kind) -> Callable[[Array, Array], Array]:
    return lambda x, y: x.astype(to.dtype) * y.astype(to.dtype)


def high_half(x: Array, y: Array) -> Array:
    """The upper half of the product of all bits."""
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


@instruction("mul24", "mad24")
def multiply_24(form: Form) -> Step:
    """Products of the low 24 bits: the low 32 bits of them."""
    form.choice("lo")
    kind = form.kind("u32", "s32")
    sources = [form.read(place, kind) for place in range(1, len(form.operands))]
    form.expect(3 if form.name == "mul24" else 4)
    return form.result(
        kind, product_of_24 if form.name == "mul24" else plus(product_of_24), sources
    )


def product_of_24(x: Array, y: Array) -> Array:
    eight = x.dtype.type(8)
    return ((x << eight) >> eight) * ((y << eight) >> eight)


@instruction("div", "rem")
@by_type
def divide(form: Form) -> Step:
    """
    Quotients cut off towards zero, and what remains.

    A division by zero gives "an unspecified, machine-specific value": here all bits set, and the
    dividend as remainder, as on GPUs.
    """
    form.expect(3)
    kind = form.kind(*WHOLE)
    return form.result(
        kind,
        quotient if form.name == "div" else remainder,
        [form.read(1, kind), form.read(2, kind)],
    )


def quotient(x: Array, y: Array) -> Array:
    none = y == 0
    if x.dtype.kind == "u":
        found = x // np.where(none, y.dtype.type(1), y)
    else:
        bits = np.dtype(f"u{x.dtype.itemsize}")
        size = np.abs(x).view(bits) // np.where(none, bits.type(1), np.abs(y).view(bits))
        found = np.where((x < 0) ^ (y < 0), -size.view(x.dtype), size.view(x.dtype))
    return np.where(none, ~x.dtype.type(0), found)


def remainder(x: Array, y: Array) -> Array:
    return np.where(y == 0, x, x - quotient(x, y) * y)


@instruction("min", "max")
@by_type
def extreme(form: Form) -> Step:
    form.expect(3)
    kind = form.kind(*WHOLE)
    return form.result(
        kind,
        np.minimum if form.name == "min" else np.maximum,
        [form.read(1, kind), form.read(2, kind)],
    )


@instruction("neg", "abs")
@by_type
def sign(form: Form) -> Step:
    """The most negative number stays what it is."""
    form.expect(2)
    kind = form.kind("s16", "s32", "s64")
    return form.result(kind, np.negative if form.name == "neg" else np.abs, [form.read(1, kind)])


@instruction("sad")
def sum_of_absolute_difference(form: Form) -> Step:
    form.expect(4)
    kind = form.kind(*WHOLE)
    return form.result(kind, plus(distance), [form.read(place, kind) for place in (1, 2, 3)])


def distance(x: Array, y: Array) -> Array:
    return np.where(x < y, y - x, x - y)


# logic

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
    The place of the highest bit that differs from the sign, or how far it is from the top; all bits
    set if there is none.
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
