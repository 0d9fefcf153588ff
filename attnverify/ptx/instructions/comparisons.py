"""Comparisons, and choices by them."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import Form, Read, Step, Write, instruction
from attnverify.ptx.instructions.floats import halves_of
from attnverify.ptx.kinds import Array, Kind
from attnverify.ptx.numbers.formats import flush
from attnverify.ptx.text.operands import Pair

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__: list[str] = []

ORDER: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
UNORDERED = {f"{name}u": name for name in ORDER}
LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}
WHOLE = [f"{letter}{bits}" for letter in "bus" for bits in (16, 32, 64)]
FLOATING = ["f32", "f64", "f16", "bf16", "f16x2", "bf16x2"]


def comparison(name: str, kind: Kind, form: Form) -> Callable[[Array, Array], Array]:
    """Of two arrays; of floating-point numbers, NaN makes ``lt`` false and ``ltu`` true."""
    if not kind.floating:
        if name in UNSIGNED and kind.name[0] == "u":
            return ORDER[UNSIGNED[name]]
        if name in ORDER and (kind.name[0] != "b" or name in ("eq", "ne")):
            return ORDER[name]
        raise form.refuse(f"{name} of {kind.name}")
    if name in ("num", "nan"):
        return is_unordered if name == "nan" else lambda x, y: ~is_unordered(x, y)
    if name == "ne":  # NumPy holds NaN different from everything; ordered, it is not
        return lambda x, y: (x < y) | (x > y)
    if name in ORDER:
        return ORDER[name]
    if name in UNORDERED:
        ordered = ORDER[UNORDERED[name]]
        return lambda x, y: ordered(x, y) | is_unordered(x, y)
    raise form.refuse(f"the comparison {name}")


def is_unordered(x: Array, y: Array) -> Array:
    """Tell whether one of two is NaN."""
    return np.asarray(np.isnan(x) | np.isnan(y))


def compared(
    form: Form,
) -> tuple[Kind, list[Callable[..., list[Array]]], Callable[[Array, Array], Array]]:
    """Read the type of a comparison, its operands as lists of numbers, and the function."""
    names = (*ORDER, *UNSIGNED, *UNORDERED, "num", "nan")
    name, ftz = form.choice(*names), form.flag("ftz")
    kind = form.kind(*WHOLE, *FLOATING)
    if ftz and kind.name != "f32":
        raise form.refuse(f".ftz of {kind.name}")
    reads = [form.read(1, kind), form.read(2, kind)]
    return kind, [numbers(read, kind, ftz) for read in reads], comparison(name, kind, form)


def numbers(read: Read, kind: Kind, ftz: bool) -> Callable[..., list[Array]]:
    if kind.element in ("f16", "bf16"):
        return halves_of(read, kind)
    return (lambda m: [flush(read(m))]) if ftz else (lambda m: [read(m)])


@instruction("setp")
def set_predicate(form: Form) -> Step:
    """
    Set one predicate, or two: the second of the opposite comparison, or of the second half of a
    pair.
    """
    form.expect(3, 4)
    logic = form.choice(*LOGIC, default="")
    kind, (x, y), function = compared(form)
    first, second = targets(form)
    combined = with_third(form, logic)
    if kind.packed == 2:
        if second is None or logic:
            raise form.refuse("a comparison of pairs writes two predicates")
        return partial(pairs, x, y, function, first, second)

    def run(m: "Machine") -> None:
        found = function(x(m)[0], y(m)[0])
        first(m, combined(m, found))
        if second is not None:
            second(m, combined(m, ~found))

    return run


def pairs(
    x: Callable[..., list[Array]],
    y: Callable[..., list[Array]],
    function: Callable[..., Array],
    first: Write,
    second: Write,
    m: "Machine",
) -> None:
    (x_low, x_high), (y_low, y_high) = x(m), y(m)
    low, high = function(x_low, y_low), function(x_high, y_high)
    first(m, low)
    second(m, high)


def targets(form: Form) -> tuple[Write, Write | None]:
    operand = form.operand(0)
    if isinstance(operand, Pair):
        return form.writing(operand.first, "pred"), form.writing(operand.second, "pred")
    return form.write(0, "pred"), None


def with_third(form: Form, logic: str) -> Callable[..., Array]:
    """The comparison joined with a further predicate, if the instruction has one."""
    if bool(logic) != (len(form.operands) == 4):
        raise form.refuse("a fourth operand goes with .and, .or or .xor")
    if not logic:
        return lambda m, found: found
    third, join = form.read(3, "pred"), LOGIC[logic]
    return lambda m, found: join(found, third(m))


@instruction("set")
def set_number(form: Form) -> Step:
    """All bits set, or 1.0, where a comparison holds."""
    form.expect(3, 4)
    logic = form.choice(*LOGIC, default="")
    to = form.kind("u32", "s32", "f32")
    kind, (x, y), function = compared(form)
    if kind.packed == 2:
        raise form.refuse("a comparison of pairs into numbers")
    combined, put = with_third(form, logic), form.write(0, to)
    yes = (
        np.array([1.0], np.float32)
        if to.floating
        else np.array([0xFFFFFFFF], np.uint32).view(to.dtype)
    )

    def run(m: "Machine") -> None:
        found = combined(m, function(x(m)[0], y(m)[0]))
        put(m, np.where(found, yes, to.dtype.type(0)))

    return run


@instruction("selp")
def select(form: Form) -> Step:
    form.expect(4)
    kind = form.kind(*WHOLE, "f32", "f64", "f16", "bf16", "f16x2")
    return form.result(kind, chosen, [form.read(1, kind), form.read(2, kind), form.read(3, "pred")])


@instruction("slct")
def select_by_sign(form: Form) -> Step:
    """The first where a third is not negative; where that is NaN, the second."""
    form.expect(4)
    ftz = form.flag("ftz")
    kind, by = form.kind(*WHOLE, "f32", "f64"), form.kind("s32", "f32")
    sources = [form.read(1, kind), form.read(2, kind), form.read(3, by)]
    return form.result(kind, lambda x, y, z: chosen(x, y, (flush(z) if ftz else z) >= 0), sources)


def chosen(x: Array, y: Array, first: Array) -> Array:
    return np.where(first, x, y)


@instruction("testp")
def test_property(form: Form) -> Step:
    form.expect(2)
    name = form.choice("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    kind = form.kind("f32", "f64")
    return form.result("pred", lambda x: PROPERTIES[name](x), [form.read(1, kind)])


PROPERTIES: dict[str, Callable[[Array], Array]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda x: ~np.isnan(x),
    "notanumber": np.isnan,
    "normal": lambda x: np.isfinite(x) & (np.abs(x) >= np.finfo(x.dtype).tiny),
    "subnormal": lambda x: (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny),
}


@instruction("copysign")
def copy_sign(form: Form) -> Step:
    """Put the sign of the first on the size of the second."""
    form.expect(3)
    kind = form.kind("f32", "f64")
    return form.result(
        kind, lambda x, y: np.copysign(y, x), [form.read(1, kind), form.read(2, kind)]
    )
