"""Moves, and conversions between types and between address spaces."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import Form, Read, Step, instruction
from attnverify.ptx.instructions.eighths import PAIRS, convert_eighths
from attnverify.ptx.instructions.floats import ROUNDINGS, halves_of, saturate
from attnverify.ptx.kinds import BITS, KINDS, Array, Kind
from attnverify.ptx.numbers.exact import odd_sum
from attnverify.ptx.numbers.formats import FORMATS, flush, narrow, rounded
from attnverify.ptx.storage.device import LOCAL_WINDOW, PARAMETER_WINDOW, SHARED_WINDOW
from attnverify.ptx.text.operands import Vector

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__: list[str] = []

INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
WHOLE = [f"{letter}{bits}" for letter in "us" for bits in (8, 16, 32, 64)]
FLOATS = ["f16", "bf16", "f32", "f64"]


@instruction("mov")
def move(form: Form) -> Step:
    """
    Move a value, an address, or a register taken apart into a vector or put together from one.
    """
    form.expect(2)
    kind = form.kind(
        "pred",
        *(f"{letter}{bits}" for letter in "bus" for bits in (16, 32, 64)),
        "f32",
        "f64",
        "f16",
        "bf16",
    )
    target, source = form.operands
    if isinstance(target, Vector):
        return take_apart(form, kind, target)
    if isinstance(source, Vector):
        return put_together(form, kind, source)
    put, read = form.write(0, kind), form.read(1, kind)
    return lambda m: put(m, read(m))


def take_apart(form: Form, kind: Kind, target: Vector) -> Step:
    part = KINDS[f"b{8 * kind.size // len(target.items)}"]
    whole = BITS[kind.size]
    read, puts = (
        form.read(1, KINDS[f"b{8 * kind.size}"]),
        [form.writing(item, part) for item in target.items],
    )

    def run(m: "Machine") -> None:
        x = read(m)
        for place, put in enumerate(puts):
            put(m, (x >> whole.type(8 * part.size * place)).astype(part.dtype))

    return run


def put_together(form: Form, kind: Kind, source: Vector) -> Step:
    part, whole = KINDS[f"b{8 * kind.size // len(source.items)}"], BITS[kind.size]
    put, reads = (
        form.write(0, KINDS[f"b{8 * kind.size}"]),
        [form.reading(item, part) for item in source.items],
    )

    def run(m: "Machine") -> None:
        found = np.zeros(1, whole)
        for place, read in enumerate(reads):
            found = found | read(m).astype(whole) << whole.type(8 * part.size * place)
        put(m, found)

    return run


@instruction("cvta")
def convert_address(form: Form) -> Step:
    """Between addresses of one space and generic ones, among which each space has a window."""
    form.expect(2)
    back = form.flag("to")
    space = form.choice("global", "shared", "shared::cta", "local", "const", "param")
    kind = form.kind("u32", "u64")
    if kind.size == 4:
        raise form.refuse("generic addresses of 32 bits")
    window = np.uint64(
        {
            "shared": SHARED_WINDOW,
            "shared::cta": SHARED_WINDOW,
            "local": LOCAL_WINDOW,
            "param": PARAMETER_WINDOW,
        }.get(space, 0)
    )
    read = form.read(1, kind)
    if window == 0:
        put = form.write(0, kind)
        return lambda m: put(m, read(m))
    return form.result(kind, (lambda x: x - window) if back else (lambda x: x + window), [read])


@instruction("isspacep")
def is_of_space(form: Form) -> Step:
    form.expect(2)
    space = form.choice("global", "shared", "shared::cta", "local", "const")
    low, high = {
        "local": (LOCAL_WINDOW, PARAMETER_WINDOW),
        "global": (0, SHARED_WINDOW),
        "const": (0, 0),
    }.get(space, (SHARED_WINDOW, LOCAL_WINDOW))
    return form.result(
        "pred", lambda x: (x >= np.uint64(low)) & (x < np.uint64(high)), [form.read(1, "u64")]
    )


@instruction("cvt")
def convert(form: Form) -> Step:
    if any(name in PAIRS for name in form.modifiers):
        return convert_eighths(form)
    modes = Conversion(form)
    to, of = form.kind(*WHOLE, *FLOATS, "f16x2", "bf16x2", "tf32"), form.kind(*WHOLE, *FLOATS)
    if to.packed == 2:
        return pack(form, modes, to, of)
    form.expect(2)
    if to.name == "tf32":
        return to_tf32(form, modes, of)
    read, put = form.read(1, of, wider=True), form.write(0, to, wider=True)
    function = conversion(form, modes, to, of)
    if of.name not in ("f16", "bf16"):
        return lambda m: put(m, function(read(m)))
    numbers = halves_of(read, of)
    return lambda m: put(m, function(numbers(m)[0]))


class Conversion:
    """The modifiers of a conversion."""

    def __init__(self, form: Form) -> None:
        self.integral = form.choice(*INTEGRAL, default="")
        self.rounding = form.choice(*ROUNDINGS, "rna", default="")
        self.ftz, self.sat = form.flag("ftz"), form.flag("sat")
        self.relu, self.satfinite = form.flag("relu"), form.flag("satfinite")
        self.form = form

    def limit(self, x: Array, largest: float) -> Array:
        """Without what is negative, or what is infinite, where a modifier says so."""
        if self.satfinite:
            x = np.clip(x, -largest, largest)
        return np.where(x <= 0, x.dtype.type(0), x) if self.relu else x


def conversion(form: Form, modes: Conversion, to: Kind, of: Kind) -> Callable[[Array], Array]:
    """Build the function from numbers of one type (halves as float32) to the bits of another."""
    if modes.satfinite and not (to.name in ("f16", "bf16") and of.name == "f32"):
        raise form.refuse(".satfinite here")
    if of.floating and to.floating:
        return float_to_float(form, modes, to, of)
    if of.floating:
        return float_to_whole(form, modes, to, of)
    if to.floating:
        return whole_to_float(form, modes, to)
    if modes.integral or modes.rounding or modes.ftz:
        raise form.refuse("a rounding between whole numbers")
    return saturating(to) if modes.sat else lambda x: x.astype(to.dtype)


def saturating(to: Kind) -> Callable[[Array], Array]:
    limits = np.iinfo(to.dtype)

    def function(x: Array) -> Array:
        low = np.maximum(x, limits.min) if x.dtype.kind == "i" else x
        high = np.minimum(low, np.array(min(limits.max, np.iinfo(x.dtype).max)).astype(x.dtype))
        return high.astype(to.dtype)

    if to.dtype.kind == "u":
        return lambda x: function(np.maximum(x, x.dtype.type(0)))
    return lambda x: (
        function(x)
        if np.iinfo(x.dtype).min <= limits.min
        else function(x.astype(np.int64) if x.itemsize < 8 else x)
    )


def float_to_whole(form: Form, modes: Conversion, to: Kind, of: Kind) -> Callable[[Array], Array]:
    """
    Rounded, held within the range of the type; NaN becomes 0, or where 64 bits take part the
    highest bit alone.
    """
    if not modes.integral or modes.rounding:
        raise form.refuse(
            "from a floating-point to a whole number: wanted one of .rni, .rzi, .rmi, .rpi"
        )
    limits = np.iinfo(to.dtype)
    wide = of.name == "f64" or to.size == 8
    nan = np.array([1 << (8 * to.size - 1) if wide else 0], BITS[to.size]).view(to.dtype)

    def function(x: Array) -> Array:
        x = flush(x) if modes.ftz and of.name == "f32" else x
        whole = INTEGRAL[modes.integral](x.astype(np.float64))
        below, beyond = whole <= float(limits.min), whole >= float(limits.max)
        inside = np.where(below | beyond | np.isnan(whole), 0.0, whole).astype(to.dtype)
        found = np.where(
            below, to.dtype.type(limits.min), np.where(beyond, to.dtype.type(limits.max), inside)
        )
        return np.where(np.isnan(x), nan, found)

    return function


def whole_to_float(form: Form, modes: Conversion, to: Kind) -> Callable[[Array], Array]:
    if not modes.rounding or modes.rounding == "rna" or modes.integral:
        raise form.refuse(
            "from a whole to a floating-point number: wanted one of .rn, .rz, .rm, .rp"
        )
    mode = modes.rounding
    if to.name == "f64":
        if mode != "rn":
            raise form.refuse("float64 in a directed mode")
        return lambda x: x.astype(np.float64)
    if to.name == "f32" and mode == "rn" and not modes.sat:
        return lambda x: x.astype(np.float32)

    def function(x: Array) -> Array:
        found = rounded(exactly(x), FORMATS[to.name], mode)
        found = saturate(found) if modes.sat else found
        return narrow(found.astype(np.float32), to.name).view(to.dtype)

    return function


def exactly(x: Array) -> Array:
    """
    Whole numbers as float64; those of more than 53 bits rounded to odd, so that a second rounding
    is the only one.
    """
    if x.dtype.itemsize < 8:
        return x.astype(np.float64)
    low = x & x.dtype.type(0xFFFFFFFF)
    return odd_sum((x - low).astype(np.float64), low.astype(np.float64))


def float_to_float(form: Form, modes: Conversion, to: Kind, of: Kind) -> Callable[[Array], Array]:
    """
    Wider, narrower with a rounding, or to a whole number of the same type. Between the two halves a
    rounding may be left out, and is to the nearest then: ptxas 12.8 makes one instruction of both.
    """
    between = {to.name, of.name} == {"f16", "bf16"}
    narrower = to.size < of.size or between
    if narrower == (modes.rounding in ("", "rna")) and not (
        (to.name == of.name or between) and not modes.rounding
    ):
        raise form.refuse("wanted a rounding where digits are lost, and there alone")
    if modes.integral and to.name != of.name:
        raise form.refuse("a rounding to whole numbers between two types")

    def function(x: Array) -> Array:
        x = flush(x) if modes.ftz and of.name == "f32" else x
        x = INTEGRAL[modes.integral](x) if modes.integral else x
        x = saturate(x) if modes.sat else x
        if to.name == "f64":
            return x.astype(np.float64)
        x = modes.limit(x, FORMATS[to.name].largest)
        found = narrow(x, to.name, modes.rounding or "rn").view(to.dtype)
        return flush(found) if modes.ftz and to.name == "f32" else found

    return function


def pack(form: Form, modes: Conversion, to: Kind, of: Kind) -> Step:
    """Pack two float32 numbers into the two halves of a register, the first into the upper one."""
    form.expect(3)
    if (
        of.name != "f32"
        or modes.rounding not in ("rn", "rz")
        or modes.integral
        or modes.ftz
        or modes.sat
    ):
        raise form.refuse("pairs are made of two float32 numbers with .rn or .rz")
    high, low = form.read(1, of), form.read(2, of)
    largest, put = FORMATS[to.element].largest, form.write(0, to)

    def half(m: "Machine", read: Read) -> Array:
        return narrow(modes.limit(read(m), largest), to.element, modes.rounding).astype(np.uint32)

    return lambda m: put(m, half(m, low) | half(m, high) << np.uint32(16))


def to_tf32(form: Form, modes: Conversion, of: Kind) -> Step:
    if (
        of.name != "f32"
        or modes.rounding not in ("rna", "rn", "rz")
        or modes.integral
        or modes.ftz
        or modes.sat
    ):
        raise form.refuse("TF32 is made of float32 with .rna, .rn or .rz")
    largest = FORMATS["tf32"].largest
    return form.result(
        "b32", lambda x: narrow(modes.limit(x, largest), "tf32", modes.rounding), [form.read(1, of)]
    )
