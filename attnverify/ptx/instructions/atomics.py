"""Atomic operations: one thread after the other, in a drawn order."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import Form, Read, Step, instruction
from attnverify.ptx.instructions.floats import extreme_of
from attnverify.ptx.instructions.loads import memory_space, scatter, skip_hints, strength
from attnverify.ptx.kinds import BITS, KINDS, Array, Kind
from attnverify.ptx.numbers.formats import flush, narrow, widen
from attnverify.ptx.storage.access import updated
from attnverify.ptx.storage.order import Strength

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__: list[str] = []

Operation = Callable[..., Array]

BITWISE: dict[str, Operation] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, x: x,
    "cas": lambda old, x, y: np.asarray(np.where(old == x, y, old)),
}
COUNTED: dict[str, Operation] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "inc": lambda old, x: np.where(old >= x, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, x: np.where((old == 0) | (old > x), x, old - old.dtype.type(1)),
}


@instruction("atom", "red")
def update(form: Form) -> Step:
    hinted = skip_hints(form)
    how = strength(form, "volatile")
    space = memory_space(form)
    name = form.choice(*BITWISE, *COUNTED)
    form.flag("noftz")
    count = int(form.choice("v2", "v4", "v8", default="v1")[1:])
    kind = form.kind(
        *(f"{letter}{bits}" for letter in "bus" for bits in (16, 32, 64)),
        "f32",
        "f64",
        "f16",
        "bf16",
        "f16x2",
        "bf16x2",
    )
    returns = form.name == "atom"
    form.expect(returns + (3 if name == "cas" else 2) + hinted)
    if kind.size * count > 16:
        raise form.refuse("an access of more than 16 bytes")
    form.kernel.touches(space, kind.size * count)
    return step_of(form, space, operation(form, name, kind, space), kind, count, how)


def operation(form: Form, name: str, kind: Kind, space: str) -> Operation:
    """Of the bits of what lies in memory and those of the operands."""
    if name in BITWISE:
        if kind.name[0] not in "bu" or (name == "cas" and kind.name[0] == "u" and kind.size == 2):
            raise form.refuse(f"{name} of {kind.name}")
        return BITWISE[name]
    if kind.name[0] == "b" and not kind.floating:
        raise form.refuse(f"{name} of {kind.name}")
    if kind.floating:
        return floating(form, name, kind, space)
    plain = COUNTED[name]
    if name in ("inc", "dec") and kind.name != "u32":
        raise form.refuse(f"{name} of {kind.name}")
    return lambda old, x: plain(old.view(kind.dtype), x.view(kind.dtype)).view(old.dtype)


def floating(form: Form, name: str, kind: Kind, space: str) -> Operation:
    """
    Sums; of halves also the least and the largest. In global memory float32 sums flush subnormal
    numbers.
    """
    halves = kind.element in ("f16", "bf16")
    if name not in (("add", "min", "max") if halves else ("add",)):
        raise form.refuse(f"{name} of {kind.name}")
    function: Operation = (
        np.add if name == "add" else lambda x, y: extreme_of(x, y, name == "min", False)
    )
    if halves:
        return lambda old, x: of_halves(function, old, x, kind)
    if kind.name == "f32" and space != "shared":
        return lambda old, x: flush(flush(old.view(kind.dtype)) + flush(x.view(kind.dtype))).view(
            old.dtype
        )
    return lambda old, x: (old.view(kind.dtype) + x.view(kind.dtype)).view(old.dtype)


def of_halves(function: Operation, old: Array, x: Array, kind: Kind) -> Array:
    """One half or two, each rounded once: float32 holds sums of two halves well enough for that."""
    parts = [part.view(np.uint16).reshape(-1) for part in (old, x)]
    found = function(*(widen(part, kind.element).astype(np.float64) for part in parts))
    return narrow(found, kind.element).view(old.dtype).reshape(old.shape)


def step_of(
    form: Form, space: str, function: Operation, kind: Kind, count: int, how: Strength
) -> Step:
    first = 1 if form.name == "atom" else 0
    address, part = form.address(first), BITS[kind.size]
    given = [values(form, place, kind, count) for place in range(first + 1, len(form.operands))][
        : 2 if form.of.modifiers.count("cas") else 1
    ]
    puts = (
        [scatter(form, place, KINDS[f"b{8 * kind.size}"]) for place in range(count)]
        if first
        else []
    )

    polls = form.polls(bool(puts))

    def run(m: "Machine") -> None:
        m.polls += polls
        lanes = m.active()
        operands = [np.stack([m.full(read(m))[lanes] for read in each], 1) for each in given]
        before = updated(m, space, m.full(address(m))[lanes], lanes, part, operands, function, how)
        for place, put in enumerate(puts):
            put(m, lanes, np.ascontiguousarray(before[:, place]))

    return run


def values(form: Form, place: int, kind: Kind, count: int) -> list[Read]:
    """Read the bits of an operand with so many numbers."""
    items = form.items(place)
    bits = KINDS[f"b{8 * kind.size}"]
    if len(items) != count:
        return []
    reads = [form.reading(item, kind, wider=True) for item in items]
    return [lambda m, read=read: read(m).view(bits.dtype) for read in reads]  # type: ignore[misc]
