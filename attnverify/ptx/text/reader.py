"""The bodies of kernels, their parameters and variables, read from text."""

import re

from attnverify.ptx.findings import NotUnderstood, Source
from attnverify.ptx.kinds import KINDS
from attnverify.ptx.text.collection import uncollected
from attnverify.ptx.text.operands import (
    OFFSET,
    Address,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Symbol,
    Vector,
    is_number,
    split_top,
)
from attnverify.ptx.text.syntax import LABEL, Instruction, Parameter, Program, Text, Variable

__all__ = ["read_body", "read_parameters", "read_variable"]

STATEMENT = re.compile(r"(?:@(!?)([%\w$]+)\s+)?([a-z]\w*(?:\.[\w:]+)*)\s*(.*)$", re.DOTALL)
VARIABLE = re.compile(
    r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$.%]+)((?:\[\d*\])*)\s*(?:=\s*(.*))?$", re.DOTALL
)
SKIPPED = (".file", ".pragma", ".maxn", ".minn", ".reqn", ".branchtargets", ".callprototype")
"""Directives that change no result."""


class Reader:
    """Reads one body: registers and labels live in nested scopes."""

    def __init__(self, text: Text) -> None:
        self.text, self.program = text, Program()
        self.scopes: list[tuple[int, dict[str, Register]]] = [(0, {})]
        self.known_operands: dict[str, Operand] = {}
        """What the texts of operands mean in the scopes that are open."""
        self.source: Source | None = None
        self.opened = 0

    def read(self, start: int, end: int) -> Program:
        for at, statement in self.text.statements(start, end):
            if statement == "{":
                self.opened += 1
                self.scopes.append((self.opened, {}))
            elif statement == "}":
                self.scopes.pop()
                self.known_operands.clear()
            elif LABEL.fullmatch(statement):
                self.program.labels[self.scopes[-1][0], statement.rstrip(": \t\n")] = len(
                    self.program.instructions
                )
            elif statement.startswith("."):
                self.directive(at, statement)
            else:
                self.instruction(at, statement)
        return self.program

    def directive(self, at: int, statement: str) -> None:
        if statement.split()[0] == ".loc":
            self.source = self.text.source(statement)
        elif statement.startswith(".reg"):
            self.registers(statement)
        elif statement.startswith((".shared", ".local")):
            space, rest = statement[1:].split(None, 1)
            self.program.variables.append(read_variable(space, rest))
        elif not statement.startswith(SKIPPED):
            raise NotUnderstood(f"PTX line {self.text.line(at)}: {statement}")

    def registers(self, statement: str) -> None:
        match = re.match(r"\.reg\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(.*)", statement, re.DOTALL)
        if match is None or match[1] not in KINDS:
            raise NotUnderstood(statement)
        self.known_operands.clear()
        for name in match[2].split(","):
            many = re.fullmatch(r"(.*)<(\d+)>", name.strip())
            for each in (
                [f"{many[1]}{place}" for place in range(int(many[2]))] if many else [name.strip()]
            ):
                made = Register(each, len(self.program.registers), KINDS[match[1]].size)
                self.program.registers.append(made)
                self.scopes[-1][1][each] = made

    def instruction(self, at: int, statement: str) -> None:
        match, line = STATEMENT.match(statement), self.text.line(at)
        text = " ".join(statement.split())
        if match is None:
            raise NotUnderstood(f"PTX line {line}: {text}")
        name, *modifiers = match[3].split(".")
        guard = self.register(match[2]) if match[2] else None
        operands = tuple(self.operand(part) for part in split_top(match[4]))
        scopes = tuple(number for number, _ in self.scopes)
        index = len(self.program.instructions)
        self.program.instructions.append(
            Instruction(
                name,
                tuple(modifiers),
                operands,
                guard,
                bool(match[1]),
                text,
                line,
                self.source,
                index,
                scopes,
            )
        )

    def register(self, name: str) -> Register | None:
        for _, names in reversed(self.scopes):
            if name in names:
                return names[name]
        return None

    def operand(self, text: str) -> Operand:
        found = self.known_operands.get(text)
        if found is None:
            found = self.known_operands[text] = self.read_operand(text)
        return found

    def read_operand(self, text: str) -> Operand:
        if text == "_":
            return Sink()
        if text[0] in "{(":
            return Vector(tuple(self.operand(part) for part in split_top(text[1:-1])))
        if text[0] == "[":
            return self.address(text[1:-1].strip())
        if text[0] == "!":
            return Negated(self.known(text[1:].strip()))
        if "|" in text:
            first, second = (self.operand(part.strip()) for part in text.split("|"))
            assert isinstance(first, Register | Sink) and isinstance(second, Register | Sink)
            return Pair(first, second)
        return self.value(text)

    def value(self, text: str) -> Register | Immediate | Symbol:
        if is_number(text):
            return Immediate(text)
        found = self.register(text)
        if found is not None:
            return found
        match = OFFSET.match(text)
        if match is None:
            raise NotUnderstood(f"the operand {text}")
        return Symbol(match[1], int(match[2] or match[3] or "0", 0))

    def address(self, text: str) -> Address:
        match = OFFSET.match(text)
        if match is None:
            raise NotUnderstood(f"the address [{text}]")
        base = self.value(match[1])
        return Address(base, int(match[2] or match[3] or "0", 0))

    def known(self, name: str) -> Register:
        found = self.register(name)
        if found is None:
            raise NotUnderstood(f"the register {name} is declared nowhere")
        return found


@uncollected
def read_body(text: Text, start: int, end: int) -> Program:
    return Reader(text).read(start, end)


def read_parameters(text: str) -> list[Parameter]:
    """Read the parameters of a kernel, laid out as a launch hands them over."""
    found: list[Parameter] = []
    offset = 0
    for part in split_top(text):
        plain = re.sub(
            r"\.ptr(\s+\.(global|shared|const|local))?(\s+\.align\s+\d+)?",
            "",
            part.removeprefix(".param").strip(),
        )
        made = read_variable("param", plain.strip())
        offset = -(-offset // made.align) * made.align
        kind = re.search(r"\.([usbf]\d+)\b", plain)
        found.append(Parameter(made.name, offset, made.size, made.align, kind[1] if kind else "b8"))
        offset += made.size
    return found


def read_variable(space: str, text: str) -> Variable:
    """Read ``.align 16 .b8 name[64] = {1, 2}`` of a state space."""
    match = VARIABLE.match(text.strip())
    if match is None or match[2] not in KINDS:
        raise NotUnderstood(f".{space} {' '.join(text.split())[:200]}")
    kind = KINDS[match[2]]
    size = kind.size
    for length in re.findall(r"\[(\d*)\]", match[4]):
        size *= int(length or 0)
    initial = b"" if match[5] is None else read_initial(match[5], kind.size, text)
    return Variable(match[3], space, int(match[1] or kind.size), size, initial)


def read_initial(text: str, size: int, whole: str) -> bytes:
    """Read the bytes of ``{1, 0x2, 0f3F800000}`` or of one number."""
    made = b""
    for part in split_top(text.strip().strip("{}")):
        if not is_number(part):
            raise NotUnderstood(f"a variable that begins as {' '.join(whole.split())[:200]}")
        number = int(part[2:], 16) if part[:2].lower() in ("0f", "0d") else int(part.rstrip("U"), 0)
        made += (number % (1 << 8 * size)).to_bytes(size, "little")
    return made
