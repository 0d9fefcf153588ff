"""Quotients of floating-point numbers."""

from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import Form, Step
from attnverify.ptx.instructions.floats import FLOATING, ROUNDINGS, Modes
from attnverify.ptx.kinds import KINDS, Array
from attnverify.ptx.numbers.errors import step
from attnverify.ptx.numbers.formats import F32, flush, rounded

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = ["directed_quotient", "divide_floats"]


def divide_floats(form: Form) -> Step:
    """Quotients, rounded once or approximate."""
    form.expect(3)
    kind = form.kind(*FLOATING)
    if kind.name == "f64":
        form.choice("rn")
        return form.result(kind, np.divide, [form.read(1, kind), form.read(2, kind)])
    if kind.name != "f32":
        raise form.refuse(f"a quotient of {kind.name}")
    how = form.choice("approx", "full", *ROUNDINGS)
    if how in ("approx", "full"):
        return approximate_quotient(form, how)
    modes = Modes(form, rounding=False)

    def function(x: Array, y: Array) -> Array:
        x, y = modes.inward(x), modes.inward(y)
        return modes.outward(x / y if how == "rn" else directed_quotient(x, y, how))

    return form.result(kind, function, [form.read(1, kind), form.read(2, kind)])


def directed_quotient(x: Array, y: Array, mode: str) -> Array:
    """
    A quotient of numbers of 24 digits is one, or differs from each by a part in 2^48: float64 shows
    on which side it is.
    """
    return rounded(x.astype(np.float64) / y, F32, mode).astype(np.float32)


def approximate_quotient(form: Form, how: str) -> Step:
    """Within 2 ulp; ``div.approx`` by more than 2^126 gives zero, or of infinity NaN."""
    ftz, kind = form.flag("ftz"), KINDS["f32"]
    put, read_x, read_y = form.write(0, kind), form.read(1, kind), form.read(2, kind)

    def run(m: "Machine") -> None:
        x, y = read_x(m), read_y(m)
        if ftz:
            x, y = flush(x), flush(y)
        exact = x / y
        found = step(exact, 2, (exact == 0) | np.isinf(y), m.draw.shares(x, y))
        if how == "approx":
            found = beyond(x, y, found)
        put(m, flush(found) if ftz else found)

    return run


def beyond(x: Array, y: Array, found: Array) -> Array:
    large = (np.abs(y) > 2.0**126) & np.isfinite(y)
    zero = np.copysign(np.float32(0), x) * np.copysign(np.float32(1), y)
    return np.where(large, np.where(np.isinf(x), np.float32(np.nan), zero), found)
