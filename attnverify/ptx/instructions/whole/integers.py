"""Arithmetic of whole numbers."""

from collections.abc import Callable

import numpy as np

from attnverify.ptx.decode import Form, Step, instruction
from attnverify.ptx.instructions.floats import FLOATING, float_arithmetic
from attnverify.ptx.instructions.quotients import divide_floats
from attnverify.ptx.instructions.whole.carries import high_half, sum_with_carry
from attnverify.ptx.kinds import KINDS, Array

__all__: list[str] = []

Function = Callable[..., Array]

WHOLE = [f"{letter}{bits}" for letter in "us" for bits in (16, 32, 64)]
PAIRS = ("u16x2", "s16x2")


def by_type(whole: Callable[[Form], Step]) -> Callable[[Form], Step]:
    """Instructions of one name for whole numbers and for floating-point ones."""

    def build(form: Form) -> Step:
        if "cc" in form.modifiers:
            return sum_with_carry(form)
        if not any(name in FLOATING for name in form.modifiers):
            return whole(form)
        return divide_floats(form) if form.name == "div" else float_arithmetic(form)

    return build


@instruction("add", "sub")
@by_type
def add(form: Form) -> Step:
    """``add.sat.s32`` stays within 32 bits; all others wrap around."""
    form.expect(3)
    if form.name == "add" and form.of.modifiers[0] in PAIRS:
        return in_pairs(form, np.add)
    saturated = form.flag("sat")
    kind = form.kind(*(["s32"] if saturated else WHOLE))
    function: Callable[[Array, Array], Array] = np.add if form.name == "add" else np.subtract
    return form.result(
        kind,
        saturating(function) if saturated else function,
        [form.read(1, kind), form.read(2, kind)],
    )


def in_pairs(form: Form, function: Function) -> Step:
    """Both halves of 32 bits, each for itself."""
    part = KINDS[form.choice(*PAIRS).removesuffix("x2")].dtype

    def halves(x: Array) -> Array:
        return np.ascontiguousarray(x).view(part).reshape(-1, 2)

    def both(x: Array, y: Array) -> Array:
        found = np.ascontiguousarray(function(halves(x), halves(y)))
        return found.view(np.uint32).reshape(-1)

    return form.result("b32", both, [form.read(1, "b32"), form.read(2, "b32")])


def saturating(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda x, y: np.clip(
        function(x.astype(np.int64), y.astype(np.int64)), -(2**31), 2**31 - 1
    ).astype(np.int32)


@instruction("mul", "mad")
@by_type
def multiply(form: Form) -> Step:
    """
    Compute the low half of a product, its high half, or all of it; for ``mad`` plus a third
    operand.
    """
    form.expect(3 if form.name == "mul" else 4)
    part = form.choice("lo", "hi", "wide")
    kind = form.kind(*WHOLE)
    if kind.size == 8 and part == "wide":
        raise form.refuse("a product of 128 bits")
    to = KINDS[f"{kind.name[0]}{16 * kind.size}"] if part == "wide" else kind
    product: Function = {
        "lo": np.multiply,
        "hi": high_half,
        "wide": (lambda x, y: x.astype(to.dtype) * y.astype(to.dtype)),
    }[part]  # type: ignore[assignment]
    sources = [form.read(1, kind), form.read(2, kind)]
    if form.name == "mul":
        return form.result(to, product, sources)
    return form.result(to, plus(product), [*sources, form.read(3, to)])


def plus(product: Function) -> Function:
    """Compute the product of two numbers plus a third."""
    return lambda x, y, z: product(x, y) + z


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
    """With .relu, of s32 and s16x2 alone, a negative result becomes 0."""
    form.expect(3)
    relu = form.flag("relu")
    plain = np.minimum if form.name == "min" else np.maximum

    def find(x: Array, y: Array) -> Array:
        return np.maximum(plain(x, y), x.dtype.type(0)) if relu else plain(x, y)

    if form.modifiers[0] in (PAIRS[1:] if relu else PAIRS):
        return in_pairs(form, find)
    kind = form.kind("s32") if relu else form.kind(*WHOLE)
    return form.result(kind, find, [form.read(1, kind), form.read(2, kind)])


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
