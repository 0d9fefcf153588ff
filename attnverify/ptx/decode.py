"""
From an instruction to a closure that executes it.

Each family of instructions registers builders by name. A builder takes the modifiers and operands
it understands from a :class:`Form`; what it leaves is refused with the instruction's text. A
closure is called with the machine and works on all lanes at once: a register is an array with a
lane for each thread, or with a single one where all threads hold the same. Arrays are never changed
in place, so that a move is a reference; a write under a mask makes a new array.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attnverify.ptx.findings import NotUnderstood
from attnverify.ptx.kinds import BITS, KINDS, Array, Kind
from attnverify.ptx.text.operands import (
    Address,
    Immediate,
    Negated,
    Operand,
    Register,
    Sink,
    Symbol,
    Vector,
)
from attnverify.ptx.text.syntax import Instruction

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine
    from attnverify.ptx.kernel import Kernel

__all__ = ["BUILDERS", "Form", "Read", "Step", "Write", "constant", "decoded", "instruction"]

Read = Callable[["Machine"], Array]
Write = Callable[["Machine", Array], None]
Step = Callable[["Machine"], Any]
Builder = Callable[["Form"], Step]

BUILDERS: dict[str, Builder] = {}

OWN_GUARD: set[str] = set()
"""Instructions that look at their guard themselves: those that change where a thread goes on."""


def instruction(*names: str, own_guard: bool = False) -> Callable[[Builder], Builder]:
    """Registers a builder for instructions of these names."""

    def register(builder: Builder) -> Builder:
        for name in names:
            BUILDERS[name] = builder
            if own_guard:
                OWN_GUARD.add(name)
        return builder

    return register


class Form:
    """
    An instruction that is being understood: its modifiers are taken one by one, and none may be
    left.
    """

    def __init__(self, of: Instruction, kernel: "Kernel") -> None:
        self.of, self.kernel, self.name = of, kernel, of.name
        self.modifiers, self.operands = list(of.modifiers), of.operands

    def refuse(self, why: str) -> NotUnderstood:
        return NotUnderstood(
            f"kernel {self.kernel.name}, PTX line {self.of.line}: {why}: {self.of.text}"
        )

    def flag(self, *names: str) -> bool:
        """Tell whether one of these modifiers is there; takes it."""
        return self.choice(*names, default="") != ""

    def choice(self, *names: str, default: str | None = None) -> str:
        """Takes the one of these modifiers that is there."""
        found = [name for name in self.modifiers if name in names]
        if not found and default is not None:
            return default
        if len(found) != 1:
            raise self.refuse(f"wanted one of .{', .'.join(names)}")
        self.modifiers.remove(found[0])
        return found[0]

    def kind(self, *allowed: str) -> Kind:
        """Takes the first modifier that is a type."""
        found = next((name for name in self.modifiers if name in KINDS), None)
        if found is None or (allowed and found not in allowed):
            raise self.refuse(
                f"wanted a type{' among .' + ', .'.join(allowed) if allowed else ''}, got {found}"
            )
        self.modifiers.remove(found)
        return KINDS[found]

    def polls(self, may: bool) -> int:
        """1 if others may be waited for with this instruction: an access that sees their writes."""
        self.kernel.waits = self.kernel.waits or may
        return int(may)

    def expect(self, *counts: int) -> None:
        """The number of operands."""
        if len(self.operands) not in counts:
            raise self.refuse(
                f"wanted {' or '.join(map(str, counts))} operands, got {len(self.operands)}"
            )

    def finish(self) -> None:
        if self.modifiers:
            raise self.refuse(f"what .{' .'.join(self.modifiers)} means here is not known")

    # operands

    def operand(self, place: int) -> Operand:
        if place >= len(self.operands):
            raise self.refuse(f"wanted at least {place + 1} operands")
        return self.operands[place]

    def read(self, place: int, kind: Kind | str, wider: bool = False) -> Read:
        return self.reading(self.operand(place), kind, wider)

    def reading(self, operand: Operand, kind: Kind | str, wider: bool = False) -> Read:
        """Build a reader of an operand as a type; ``wider`` registers give their low bits."""
        kind = KINDS[kind] if isinstance(kind, str) else kind
        if isinstance(operand, Register):
            return self.reading_register(operand, kind, wider)
        if isinstance(operand, Negated) and kind.size == 0:
            read = self.reading_register(operand.of, kind, False)
            return lambda m: ~read(m)
        if isinstance(operand, Immediate):
            value = self.number(operand, kind)
            return lambda m: value
        if isinstance(operand, Symbol):
            return self.reading_symbol(operand, kind)
        raise self.refuse(f"no value: {operand}")

    def reading_register(self, of: Register, kind: Kind, wider: bool) -> Read:
        index, dtype = of.index, kind.dtype
        if of.size == kind.size:
            return lambda m: x if (x := m.registers[index]).dtype is dtype else x.view(dtype)
        if wider and of.size > kind.size:
            whole, low = BITS[of.size], BITS[kind.size]
            return lambda m: m.registers[index].view(whole).astype(low).view(dtype)
        raise self.refuse(f"the register {of.name} has {8 * of.size} bits, the type {kind.name}")

    def reading_symbol(self, symbol: Symbol, kind: Kind) -> Read:
        name, offset = symbol.name, symbol.offset
        if name.startswith("%"):
            if name not in SPECIAL or offset:
                raise self.refuse(f"the special register {name}")
            dtype = kind.dtype
            if name in CLOCKS:
                return lambda m: np.array([m.steps]).astype(dtype)
            if kind.size == 4:
                return lambda m: m.special(name).view(dtype)
            return lambda m: m.special(name).astype(dtype)
        if not self.kernel.has_variable(name):
            raise self.refuse(f"the name {name}")
        return lambda m: np.array([m.variables[name] + offset]).astype(kind.dtype)

    def number(self, operand: Immediate, kind: Kind) -> Array:
        try:
            return constant(operand.text, kind)
        except (ValueError, KeyError):
            raise self.refuse(f"the number {operand.text} as {kind.name}") from None

    def whole(self, place: int) -> int:
        """Read an operand that must be written as a number."""
        operand = self.operand(place)
        if not isinstance(operand, Immediate):
            raise self.refuse(f"wanted a number for operand {place + 1}")
        return int(operand.text.rstrip("U"), 0)

    def items(self, place: int) -> tuple[Operand, ...]:
        """List the parts of a vector, or the one operand."""
        operand = self.operand(place)
        return operand.items if isinstance(operand, Vector) else (operand,)

    def address(self, place: int) -> Read:
        """Addresses as int64."""
        operand = self.operand(place)
        if not isinstance(operand, Address):
            raise self.refuse(f"wanted an address for operand {place + 1}")
        return self.address_of(operand)

    def address_of(self, operand: Address) -> Read:
        base, offset = operand.base, np.int64(operand.offset)
        if isinstance(base, Register):
            if base.size not in (4, 8):
                raise self.refuse(f"an address in the register {base.name}")
            of_base = self.reading_register(base, KINDS[f"u{8 * base.size}"], False)
        else:
            of_base = self.reading(base, "u64")
        return lambda m: of_base(m).astype(np.int64) + offset

    def write(self, place: int, kind: Kind | str, wider: bool = False) -> Write:
        return self.writing(self.operand(place), kind, wider)

    def writing(self, operand: Operand, kind: Kind | str, wider: bool = False) -> Write:
        """
        Build a writer of lanes; where a register is ``wider`` it is filled with zeros, or with the
        sign of a signed type.
        """
        kind = KINDS[kind] if isinstance(kind, str) else kind
        if isinstance(operand, Sink):
            return lambda m, x: None
        if not isinstance(operand, Register):
            raise self.refuse(f"no register: {operand}")
        index = operand.index
        if operand.size == kind.size:
            return lambda m, x: m.put(index, x)
        if wider and operand.size > kind.size:
            full = KINDS[f"{'s' if kind.signed else 'u'}{8 * operand.size}"].dtype
            return lambda m, x: m.put(index, x.astype(full))
        raise self.refuse(
            f"the register {operand.name} has {8 * operand.size} bits, the type {kind.name}"
        )

    def result(self, kind: Kind | str, function: Callable[..., Array], sources: list[Read]) -> Step:
        """Write a function of what the sources give into the first operand."""
        put = self.write(0, kind)
        return build_step(put, function, sources)


def build_step(put: Write, function: Callable[..., Array], sources: list[Read]) -> Step:
    """put(function(*sources)) without a list, for the numbers of operands that there are."""
    if len(sources) == 1:
        (x,) = sources
        return lambda m: put(m, function(x(m)))
    if len(sources) == 2:
        x, y = sources
        return lambda m: put(m, function(x(m), y(m)))
    if len(sources) == 3:
        x, y, z = sources
        return lambda m: put(m, function(x(m), y(m), z(m)))
    return lambda m: put(m, function(*(source(m) for source in sources)))


AXES = [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
CLOCKS = ("%clock", "%clock64", "%globaltimer", "%globaltimer_lo")
"""They count instructions."""

SPECIAL = {
    *AXES,
    *CLOCKS,
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%dynamic_smem_size",
    *(f"%lanemask_{side}" for side in ("eq", "lt", "le", "gt", "ge")),
}


def constant(text: str, kind: Kind) -> Array:
    """Read a number as it is written, as one lane of a type."""
    if kind.size == 0:
        return np.array([int(text, 0) != 0])
    if text[:2] in ("0f", "0F", "0d", "0D"):
        value = np.array([int(text[2:], 16)], BITS[4 if text[1] in "fF" else 8])
        real = value.view("f4" if text[1] in "fF" else "f8")
        return value.view(kind.dtype) if value.itemsize == kind.size else real.astype(kind.dtype)
    if "." in text or ("e" in text.lower() and not text.lower().startswith(("0x", "-0x"))):
        return np.array([float(text)], kind.dtype)
    number = int(text.rstrip("U"), 0)
    if kind.dtype.kind == "f":
        return np.array([number], kind.dtype)
    return np.array([number % (1 << 8 * kind.size)], BITS[kind.size]).view(kind.dtype)


def decoded(of: Instruction, kernel: "Kernel") -> Step:
    """Build the closure of an instruction, behind its guard."""
    form = Form(of, kernel)
    if of.name not in BUILDERS:
        raise form.refuse("an instruction that is not known")
    step = BUILDERS[of.name](form)
    form.finish()
    step = kernel.watched(form, step)
    if of.guard is None or of.name in OWN_GUARD:
        return step
    return partial(guard_step, step, of.guard.index, of.inverted)


def guard_step(step: Step, index: int, inverted: bool, m: "Machine") -> Any:
    """Limit a step to the lanes whose predicate holds."""
    holds = m.registers[index]
    if inverted:
        holds = ~holds
    if holds.size == 1:
        return step(m) if holds[0] else None
    before, then = m.mask, None
    mask = holds if before is None else holds & before
    count = np.count_nonzero(mask)
    if count:
        m.mask = None if count == m.lanes else mask
        then = step(m)
        m.mask = before
    return then
