"""Conversions from and to numbers of 8 bits, two of them in a register: E4M3 and E5M2."""

from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import Form, Read, Step
from attnverify.ptx.kinds import Array
from attnverify.ptx.numbers.formats import narrow, narrow_to_eight_bits, widen

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = ["PAIRS", "convert_eighths"]

PAIRS = ("e4m3x2", "e5m2x2")


def convert_eighths(form: Form) -> Step:
    """
    ``cvt.rn.satfinite.e4m3x2.f32 d, a, b``, the first number into the upper byte; the same of
    ``f16x2``; and back to ``f16x2``, which is exact.
    """
    form.choice("rn")
    relu, held = form.flag("relu"), form.flag("satfinite")
    kinds = [name for name in form.modifiers if name in (*PAIRS, "f16x2", "f32")]
    form.modifiers = [name for name in form.modifiers if name not in kinds]
    if len(kinds) != 2 or (kinds[0] in PAIRS) == (kinds[1] in PAIRS):
        raise form.refuse("between these types")
    if held != (kinds[0] in PAIRS) or kinds[0] == "f32":
        raise form.refuse("wanted .satfinite where numbers become narrower, and there alone")
    kind = kinds[not held].removesuffix("x2")
    if not held:
        return back_to_halves(form, kind, relu)
    form.expect(3 if kinds[1] == "f32" else 2)
    put, numbers = form.write(0, "b16"), two_numbers(form, kinds[1])

    def run(m: "Machine") -> None:
        high, low = (
            narrow_to_eight_bits(without_sign(x) if relu else x, kind).astype(np.uint16)
            for x in numbers(m)
        )
        put(m, low | high << np.uint16(8))

    return run


def without_sign(x: Array) -> Array:
    """Numbers, with 0 for those below it."""
    return np.where(x <= 0, np.float32(0), x)


def two_numbers(form: Form, kind: str) -> Read:
    """The upper and the lower number of a conversion, as float32."""
    if kind == "f32":
        reads = form.read(1, "f32"), form.read(2, "f32")
        return lambda m: tuple(read(m) for read in reads)  # type: ignore[return-value]
    pair = form.read(1, "b32")

    def halves(m: "Machine") -> tuple[Array, Array]:
        each = np.ascontiguousarray(pair(m)).view(np.float16).reshape(-1, 2).astype(np.float32)
        return each[:, 1], each[:, 0]

    return halves  # type: ignore[return-value]


def back_to_halves(form: Form, kind: str, relu: bool) -> Step:
    form.expect(2)

    def function(x: Array) -> Array:
        numbers = widen(np.ascontiguousarray(x).view(np.uint8), kind)
        numbers = without_sign(numbers) if relu else numbers
        return np.ascontiguousarray(narrow(numbers, "f16")).view(np.uint32)

    return form.result("b32", function, [form.read(1, "b16")])
