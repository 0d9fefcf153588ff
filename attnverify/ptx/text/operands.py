"""The operands of an instruction, as they are written."""

import re
from dataclasses import dataclass

__all__ = [
    "Address",
    "Box",
    "Immediate",
    "Negated",
    "Operand",
    "Pair",
    "Register",
    "Sink",
    "Symbol",
    "Vector",
    "split_top",
]


@dataclass(frozen=True, slots=True)
class Register:
    """A register: its place in the register file and its bytes (0 for a predicate)."""

    name: str
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class Immediate:
    """A number as it is written; the instruction's type says what bits it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, parameter, label or special register, and bytes behind its start."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``."""

    base: "Register | Symbol | Immediate"
    offset: int


@dataclass(frozen=True, slots=True)
class Box:
    """``[map, {x, y}]``: a tensor map, and the first corner of a box of it."""

    of: Address
    corner: "Vector"


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b}``, or the parenthesised lists of a call."""

    items: "tuple[Operand, ...]"


@dataclass(frozen=True, slots=True)
class Pair:
    """``p|q``: two results."""

    first: "Register | Sink"
    second: "Register | Sink"


@dataclass(frozen=True, slots=True)
class Negated:
    """``!p``."""

    of: Register


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: a result that nobody wants."""


Operand = Box | Register | Immediate | Symbol | Address | Vector | Pair | Negated | Sink

NUMBER = re.compile(
    r"^-?(0[xX][0-9a-fA-F]+|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+(\.\d+)?([eE][+-]?\d+)?)U?$"
)
OFFSET = re.compile(r"^(\S+?)\s*(?:\+\s*(-?\w+)|(-\d+))?$")


BRACKET_OR_COMMA = re.compile(r"[,{}\[\]()]")


def split_top(text: str) -> list[str]:
    """Find the parts between the commas that lie outside of all brackets."""
    parts, depth, start = [], 0, 0
    for match in BRACKET_OR_COMMA.finditer(text):
        letter = match[0]
        if letter != ",":
            depth += 1 if letter in "{[(" else -1
        elif depth == 0:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    last = text[start:].strip()
    return [*parts, last] if last else parts


def is_number(text: str) -> bool:
    return bool(NUMBER.match(text))
