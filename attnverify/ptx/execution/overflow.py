"""
Why an address is far off: a sum or product on its way that left its 32 bits.

Nothing is watched for it. Where an access is out of bounds, the instructions that made its address
are followed backwards, and those of 32 bits are done again with whole numbers for the one thread:
its registers still hold what they took and what they gave.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import constant
from attnverify.ptx.kinds import KINDS
from attnverify.ptx.text.operands import Address, Immediate, Operand, Pair, Register, Vector
from attnverify.ptx.text.syntax import Instruction

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = ["find_overflow"]

MOST = 200
"""So many instructions are followed back."""

EXACT: dict[str, tuple[str, Callable[..., int]]] = {
    "add": ("{} plus {}", lambda a, b: a + b),
    "sub": ("{} minus {}", lambda a, b: a - b),
    "mul": ("{} times {}", lambda a, b: a * b),
    "mad": ("{} times {} plus {}", lambda a, b, c: a * b + c),
    "shl": ("{} times 2 to the {}", lambda a, b: a << (b & 63)),
}
RANGES = {True: (-(2**31), 2**31 - 1), False: (0, 2**32 - 1)}


def find_overflow(m: "Machine", lane: int) -> tuple[str, int] | None:
    """In words what left its 32 bits on the way to the address of a lane, and where."""
    instructions = m.kernel.program.instructions
    here = instructions[m.index]
    left: list[tuple[Register, int, bool | None]] = [
        (register, m.index, None)
        for operand in here.operands
        if isinstance(operand, Address)
        for register in registers_in(operand.base)
    ]
    seen: set[int] = set()
    while left and len(seen) < MOST:
        register, before, signed = left.pop()
        for index in definitions(instructions, register, before):
            if index in seen:
                continue
            seen.add(index)
            of = instructions[index]
            told = left_its_bits(m, lane, of, signed)
            if told is not None:
                return told, index
            left += sources(of, index, signed)
    return None


def definitions(instructions: list[Instruction], register: Register, before: int) -> Iterator[int]:
    """Those that write a register: the last in front of a place first."""
    writing = [
        index
        for index, of in enumerate(instructions)
        if of.operands and of.name not in ("st", "red") and register in registers_in(of.operands[0])
    ]
    yield from reversed([index for index in writing if index < before])
    yield from (index for index in writing if index >= before)


def registers_in(operand: Operand) -> tuple[Register, ...]:
    if isinstance(operand, Vector):
        return tuple(part for item in operand.items for part in registers_in(item))
    if isinstance(operand, Pair):
        return (*registers_in(operand.first), *registers_in(operand.second))
    return (operand,) if isinstance(operand, Register) else ()


def sources(
    of: Instruction, index: int, signed: bool | None
) -> list[tuple[Register, int, bool | None]]:
    """What an instruction takes, and whether that is widened with its sign, without, or not yet."""
    if of.name in ("ld", "ldu", "atom"):
        return []
    found = []
    for operand in of.operands[1:]:
        for register in registers_in(operand):
            widened = register.size == 4 and signed is None
            sign = any(name in ("s32", "s16") for name in of.modifiers[-1:]) if widened else signed
            found.append((register, index, sign if register.size == 4 else None))
    return found


def left_its_bits(m: "Machine", lane: int, of: Instruction, signed: bool | None) -> str | None:
    """In words, if a sum or product of 32 bits is not what its register holds."""
    narrow = of.modifiers[-1:] and of.modifiers[-1] in ("s32", "u32", "b32")
    if signed is None or of.name not in EXACT or not narrow or {"wide", "hi"} & {*of.modifiers}:
        return None
    words, exact = EXACT[of.name]
    told = ""
    for sign in (True, signed):
        values = [value_of(m, lane, operand, sign) for operand in of.operands]
        if None in values:
            return None
        result, *given = (value for value in values if value is not None)
        total = exact(*given)
        if (total - result) % (1 << 32) or RANGES[signed][0] <= total <= RANGES[signed][1]:
            return None
        told = f"{words.format(*given)} left 32 bits"
    return told


def value_of(m: "Machine", lane: int, operand: Operand, signed: bool) -> int | None:
    """What an operand is for a lane now."""
    kind = KINDS["s32" if signed else "u32"]
    if isinstance(operand, Immediate):
        return int(constant(operand.text, kind)[0])
    if not isinstance(operand, Register) or operand.size != 4:
        return None
    register = m.registers[operand.index].view(kind.dtype)
    return int(np.broadcast_to(register, (m.lanes,))[lane])
