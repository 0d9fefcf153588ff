"""
Functions: approximate ones with the errors that the ISA states, and roots and reciprocals that are
rounded once.
"""

from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import Form, Step, instruction
from attnverify.ptx.instructions.floats import (
    ROUNDINGS,
    Modes,
    float_arithmetic,
    halved,
    halves_of,
)
from attnverify.ptx.instructions.quotients import directed_quotient
from attnverify.ptx.kinds import KINDS, Array
from attnverify.ptx.numbers.errors import APPROXIMATE, approximate
from attnverify.ptx.numbers.formats import BF16, F32, flush, narrow, rounded

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__: list[str] = []


@instruction("fma")
def fused(form: Form) -> Step:
    return float_arithmetic(form)


@instruction("ex2", "lg2", "rsqrt", "sin", "cos", "tanh")
def function(form: Form) -> Step:
    form.expect(2)
    form.choice("approx")
    return approximate_function(form)


@instruction("rcp", "sqrt")
def reciprocal_or_root(form: Form) -> Step:
    form.expect(2)
    how = form.choice("approx", *ROUNDINGS)
    return approximate_function(form) if how == "approx" else exact_function(form, how)


def approximate_function(form: Form) -> Step:
    ftz = form.flag("ftz")
    kind = form.kind("f32", "f16", "bf16", "f16x2", "bf16x2")
    name, element = form.name, kind.element
    if (name, element) not in APPROXIMATE:
        raise form.refuse(f"{name}.approx of {element}")
    if element != "f32":
        return approximate_half(form, ftz)
    if name == "tanh" and ftz:
        raise form.refuse("tanh passes subnormal numbers through")
    put, read = form.write(0, kind), form.read(1, kind)

    def run(m: "Machine") -> None:
        x = read(m)
        found = approximate(name, "f32", flush(x) if ftz else x, m.draw)
        put(m, flush(found) if ftz else found)

    return run


def approximate_half(form: Form, ftz: bool) -> Step:
    kind = KINDS[next(name for name in form.of.modifiers if name in KINDS)]
    name, element = form.name, kind.element
    if ftz != (name == "ex2" and element == "bf16"):
        raise form.refuse("ex2 of bf16 has .ftz, the other halves have not")
    source, put = halves_of(form.read(1, kind), kind), form.write(0, kind)

    def run(m: "Machine") -> None:
        def each(x: Array) -> Array:
            found = approximate(name, element, flush(x, BF16.tiny) if ftz else x, m.draw)
            return narrow(flush(found, BF16.tiny) if ftz else found, element)

        halved(put, kind, each, [source])(m)

    return run


def exact_function(form: Form, how: str) -> Step:
    kind = form.kind("f32", "f64")
    if kind.name == "f64":
        if how != "rn":
            raise form.refuse("float64 in a directed mode")
        return form.result(
            kind, np.reciprocal if form.name == "rcp" else np.sqrt, [form.read(1, kind)]
        )
    modes = Modes(form, rounding=False)
    plain = rounded_reciprocal if form.name == "rcp" else rounded_root
    return form.result(
        kind, lambda x: modes.outward(plain(modes.inward(x), how)), [form.read(1, kind)]
    )


def rounded_reciprocal(x: Array, how: str) -> Array:
    return np.float32(1) / x if how == "rn" else directed_quotient(np.ones_like(x), x, how)


def rounded_root(x: Array, how: str) -> Array:
    if how == "rn":
        return np.asarray(np.sqrt(x))
    # as with quotients: a root that is no float32 is far enough from every one
    return rounded(np.sqrt(x.astype(np.float64)), F32, how).astype(np.float32)
