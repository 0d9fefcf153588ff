"""
Floating-point arithmetic with one rounding, of float32, float64, halves and pairs of halves.

Halves are computed in float32 or float64 and rounded once. The payload of a NaN is not modelled.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import Form, Read, Step, Write
from attnverify.ptx.kinds import KINDS, Array, Kind
from attnverify.ptx.numbers.exact import directed_sum, fused, fused_f32, fused_f64, odd_sum
from attnverify.ptx.numbers.formats import F32, FORMATS, flush, narrow, rounded, widen

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = ["FLOATING", "ROUNDINGS", "Modes", "float_arithmetic", "halved", "halves_of", "saturate"]

FLOATING = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")
ROUNDINGS = ("rn", "rz", "rm", "rp")


class Modes:
    """What an instruction says about rounding, subnormal numbers and saturation."""

    def __init__(self, form: Form, rounding: bool = True) -> None:
        self.rounding = form.choice(*ROUNDINGS, default="rn") if rounding else "rn"
        self.ftz, self.sat = form.flag("ftz"), form.flag("sat")

    def inward(self, x: Array) -> Array:
        return flush(x) if self.ftz else x

    def outward(self, x: Array) -> Array:
        x = flush(x) if self.ftz else x
        return saturate(x) if self.sat else x


def saturate(x: Array) -> Array:
    """Into [+0, 1]; NaN becomes 0."""
    return np.where(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0))


def float_arithmetic(form: Form) -> Step:
    """add, sub, mul, mad, fma, min, max, neg, abs of a floating-point type."""
    kind = form.kind(*FLOATING)
    form.expect({"neg": 2, "abs": 2, "fma": 4, "mad": 4}.get(form.name, 3))
    if form.name in ("min", "max"):
        return extreme(form, kind)
    if form.name in ("neg", "abs"):
        return sign(form, kind)
    if kind.name == "f32":
        return single(form)
    return double(form) if kind.name == "f64" else half(form, kind)


# float32

PLAIN: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
}


def single(form: Form) -> Step:
    modes, kind = Modes(form), KINDS["f32"]
    function = single_function(form.name, modes.rounding)
    sources = [form.read(place, kind) for place in range(1, len(form.operands))]
    if not modes.ftz and not modes.sat:
        return form.result(kind, function, sources)
    return form.result(
        kind, lambda *x: modes.outward(function(*(modes.inward(each) for each in x))), sources
    )


def single_function(name: str, mode: str) -> Callable[..., Array]:
    if name in ("fma", "mad"):
        return (
            fused_f32
            if mode == "rn"
            else lambda x, y, z: fused(x, y, z, F32, mode).astype(np.float32)
        )
    plain = PLAIN[name]
    if mode == "rn":
        return plain
    if name == "mul":  # a product of two numbers of 24 digits has 48
        return lambda x, y: rounded(x.astype(np.float64) * y, F32, mode).astype(np.float32)
    turn = 1.0 if name == "add" else -1.0
    return lambda x, y: directed_sum(
        x.astype(np.float64), turn * y.astype(np.float64), F32, mode
    ).astype(np.float32)


# float64


def double(form: Form) -> Step:
    form.choice("rn", default="rn")
    kind = KINDS["f64"]
    function: Callable[..., Array] = fused_f64 if form.name in ("fma", "mad") else PLAIN[form.name]
    return form.result(
        kind, function, [form.read(place, kind) for place in range(1, len(form.operands))]
    )


# halves


def halves_of(read: Read, kind: Kind) -> Callable[..., list[Array]]:
    """Read the one or two numbers of an operand, as float32."""
    if kind.packed == 1:
        return lambda m: [widen(read(m).view(np.uint16), kind.name)]
    low, high = np.uint32(0xFFFF), np.uint32(16)

    def parts(m: "Machine") -> list[Array]:
        x = read(m)
        return [widen(part.astype(np.uint16), kind.element) for part in (x & low, x >> high)]

    return parts


def halved(
    put: Write,
    kind: Kind,
    function: Callable[..., Array],
    sources: list[Callable[..., list[Array]]],
) -> Step:
    """
    A function of float32 numbers whose result is the bits of halves, done for each part of a pair.
    """

    def run(m: "Machine") -> None:
        given = [source(m) for source in sources]
        found = [function(*(each[place] for each in given)) for place in range(kind.packed)]
        if kind.packed == 1:
            put(m, found[0].view(kind.dtype))
        else:
            put(m, found[0].astype(np.uint32) | found[1].astype(np.uint32) << np.uint32(16))

    return run


def half(form: Form, kind: Kind) -> Step:
    """Sums, products and their fusion, rounded once to the nearest half."""
    form.choice("rn", default="rn")
    ftz, sat, relu = form.flag("ftz"), form.flag("sat"), form.flag("relu")
    if kind.element == "bf16" and (ftz or sat):
        raise form.refuse("bf16 with .ftz or .sat")
    if relu and form.name != "fma":
        raise form.refuse(".relu is for fma alone")
    tiny = FORMATS["f16"].tiny
    sources = [halves_of(form.read(place, kind), kind) for place in range(1, len(form.operands))]

    def function(*given: Array) -> Array:
        x = [flush(each, tiny) if ftz else each for each in given]
        found = half_arithmetic(form.name, x, kind.element)
        found = flush(found, tiny) if ftz else found
        found = saturate(found) if sat else found
        return narrow(np.where(found <= 0, np.float32(0), found) if relu else found, kind.element)

    return halved(form.write(0, kind), kind, function, sources)


def half_arithmetic(name: str, x: list[Array], kind: str) -> Array:
    """Exact in float64, or rounded to odd there; then rounded to the format, as float32."""
    wide = [each.astype(np.float64) for each in x]
    if name == "mul":
        exact = wide[0] * wide[1]
    elif name in ("add", "sub"):
        exact = odd_sum(wide[0], wide[1] if name == "add" else -wide[1])
    else:
        exact = odd_sum(wide[0] * wide[1], wide[2])
    return rounded(exact, FORMATS[kind]).astype(np.float32)


# least and largest, sign


def extreme(form: Form, kind: Kind) -> Step:
    """
    The other operand where one is NaN, or with .NaN a NaN; +0 is larger than -0. With .xorsign.abs
    that of the absolute values, negative where one of the two is.
    """
    ftz, nan, absolute = form.flag("ftz"), form.flag("NaN"), form.flag("xorsign")
    if absolute != form.flag("abs") or (absolute and kind.name == "f64"):
        raise form.refuse(".xorsign and .abs go together, and not with f64")
    least = form.name == "min"

    def function(x: Array, y: Array) -> Array:
        if ftz:
            x, y = flush(x), flush(y)
        if absolute:
            found = extreme_of(np.abs(x), np.abs(y), least, nan)
            return np.where(np.signbit(x) ^ np.signbit(y), -found, found)
        return extreme_of(x, y, least, nan)

    if kind.name in ("f32", "f64"):
        return form.result(kind, function, [form.read(1, kind), form.read(2, kind)])
    if ftz:
        raise form.refuse("halves with .ftz")
    sources = [halves_of(form.read(place, kind), kind) for place in (1, 2)]
    return halved(
        form.write(0, kind), kind, lambda x, y: narrow(function(x, y), kind.element), sources
    )


def extreme_of(x: Array, y: Array, least: bool, nan: bool) -> Array:
    if nan:
        found = np.minimum(x, y) if least else np.maximum(x, y)
    else:
        found = np.fmin(x, y) if least else np.fmax(x, y)
    zeros = (x == 0) & (y == 0)
    if np.count_nonzero(zeros):
        found = np.where(zeros, -(-x + -y) if least else x + y, found)
    return found


def sign(form: Form, kind: Kind) -> Step:
    """The sign bit alone changes, for NaN too."""
    ftz = form.flag("ftz")
    function: Callable[[Array], Array] = np.negative if form.name == "neg" else np.abs
    if kind.name in ("f32", "f64"):
        return form.result(
            kind, (lambda x: function(flush(x))) if ftz else function, [form.read(1, kind)]
        )
    if ftz:
        raise form.refuse("halves with .ftz")
    ones = 0x8000 if kind.packed == 1 else 0x80008000
    bits = KINDS[f"u{8 * kind.size}"]
    mask = bits.dtype.type(ones)
    turned = (lambda x: x ^ mask) if form.name == "neg" else (lambda x: x & ~mask)
    return form.result(bits, turned, [form.read(1, bits)])
