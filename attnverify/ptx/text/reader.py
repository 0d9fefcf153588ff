"""The bodies of kernels, their parameters and variables, read from text."""

import re
from dataclasses import dataclass, replace

from attnverify.ptx.findings import NotUnderstood, Source
from attnverify.ptx.kinds import KINDS
from attnverify.ptx.text.collection import uncollected
from attnverify.ptx.text.operands import (
    OFFSET,
    Address,
    Box,
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
from attnverify.ptx.text.syntax import (
    LABEL,
    RESULT,
    Instruction,
    Parameter,
    Program,
    Text,
    Variable,
)

__all__ = ["read_body", "read_function", "read_parameters", "read_variable"]

STATEMENT = re.compile(r"(?:@(!?)([%\w$]+)\s+)?([a-z]\w*(?:\.[\w:]+)*)\s*(.*)$", re.DOTALL)
VARIABLE = re.compile(
    r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$.%]+)((?:\[\d*\])*)\s*(?:=\s*(.*))?$", re.DOTALL
)
SKIPPED = (".file", ".pragma", ".maxn", ".minn", ".reqn", ".callprototype")
"""Directives that change no result."""


MOST = 200_000
"""So many instructions a kernel may have with all that it calls."""


@dataclass(frozen=True)
class Function:
    """A function of the device: its body, and the names of its parameters and results."""

    start: int
    end: int
    parameters: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """A call that is being read: what its names stand for, the label behind it, and its line."""

    name: str
    names: dict[str, str]
    end: str
    source: Source | None


def items_of(operands: tuple[Operand, ...]) -> list[Operand]:
    return [item for each in operands if isinstance(each, Vector) for item in each.items]


def names_of(operands: list[Operand]) -> list[str]:
    return [each.name for each in operands if isinstance(each, Symbol)]


def in_call(operand: Operand) -> bool:
    """Whether an operand is the memory in which a call takes its parameters."""
    return (
        isinstance(operand, Address)
        and isinstance(operand.base, Symbol)
        and "@" in operand.base.name
    )


class Reader:
    """Reads one body: registers and labels live in nested scopes."""

    def __init__(self, text: Text, functions: "dict[str, Function]") -> None:
        self.text, self.program, self.functions = text, Program(), functions
        self.calls: list[Call] = []
        """The calls inside of which it reads."""
        self.aliases: list[dict[str, str]] = [{}]
        """What names of memory mean, scope by scope: each call has parameters of its own."""
        self.scopes: list[tuple[int, dict[str, Register]]] = [(0, {})]
        self.known_operands: dict[str, Operand] = {}
        """What the texts of operands mean in the scopes that are open."""
        self.source: Source | None = None
        self.opened = 0
        self.last_label = ""

    def read(self, start: int, end: int) -> Program:
        for at, statement in self.text.statements(start, end):
            if statement == "{":
                self.open_scope({})
            elif statement == "}":
                self.close_scope()
            elif LABEL.fullmatch(statement):
                self.last_label = statement.rstrip(": \t\n")
                place = self.scopes[-1][0], self.last_label
                self.program.labels[place] = len(self.program.instructions)
            elif statement.startswith("."):
                self.directive(at, statement)
            else:
                self.instruction(at, statement)
        return self.program

    def open_scope(self, aliases: dict[str, str]) -> None:
        self.opened += 1
        self.scopes.append((self.opened, {}))
        self.aliases.append(aliases)
        self.known_operands.clear()

    def close_scope(self) -> None:
        self.scopes.pop()
        self.aliases.pop()
        self.known_operands.clear()

    def directive(self, at: int, statement: str) -> None:
        if statement.split()[0] == ".loc":
            self.source = self.within_calls(self.text.source(statement))
        elif statement.startswith(".reg"):
            self.registers(statement)
        elif statement.startswith((".shared", ".local", ".param")):
            self.variable(*statement[1:].split(None, 1))
        elif statement.startswith(".branchtargets"):
            self.program.tables[self.last_label] = split_top(statement.split(None, 1)[1])
        elif not statement.startswith(SKIPPED):
            raise NotUnderstood(f"PTX line {self.text.line(at)}: {statement}")

    def variable(self, space: str, rest: str) -> None:
        """Shared memory is there once; memory of a thread's own anew in each call."""
        made = read_variable("local" if space == "param" else space, rest)
        if space == "param" or (self.calls and space == "local"):
            name = f"{made.name}@{self.opened}"
            self.aliases[-1][made.name] = name
            made = replace(made, name=name)
            self.known_operands.clear()
        if made not in self.program.variables:
            self.program.variables.append(made)

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
        if name == "call" and (call := self.called(operands, text)) is not None:
            self.read_called(call, guard, bool(match[1]), (text, line, self.source))
            return
        if name == "ret" and self.calls:
            name, operands = "bra", (Symbol(self.calls[-1].end),)
        if "param" in modifiers and any(map(in_call, operands)):
            modifiers[modifiers.index("param")] = "local"
        self.add(name, modifiers, operands, guard, bool(match[1]), (text, line, self.source))

    def add(
        self,
        name: str,
        modifiers: list[str],
        operands: tuple[Operand, ...],
        guard: Register | None,
        inverted: bool,
        where: tuple[str, int, Source | None],
    ) -> None:
        scopes = tuple(number for number, _ in self.scopes)
        for each in (
            (modifiers, [*modifiers, RESULT])
            if "red" in modifiers[:2] and name[:3] == "bar"
            else (modifiers,)
        ):
            index = len(self.program.instructions)
            made = Instruction(name, tuple(each), operands, guard, inverted, *where, index, scopes)
            self.program.instructions.append(made)

    # calls: the body of a function stands in place of each

    def within_calls(self, source: Source | None) -> Source | None:
        """A line of a function that was called, and where."""
        if source is None or source.inlined is not None or not self.calls:
            return source
        return replace(source, inlined=self.calls[-1].source)

    def called(self, operands: tuple[Operand, ...], text: str) -> "Call | None":
        """A call of a function of this text, if it is one."""
        name = next((each for each in operands if not isinstance(each, Vector)), None)
        if isinstance(name, Register):
            raise NotUnderstood(f"a call of whatever a register points at: {text}")
        if not isinstance(name, Symbol) or name.name not in self.functions:
            return None
        if any(call.name == name.name for call in self.calls):
            raise NotUnderstood(f"a function that calls itself, {name.name}: {text}")
        function = self.functions[name.name]
        at = operands.index(name)
        given = items_of((*operands[:at], *operands[at + 1 : at + 2]))
        formal, actual = [*function.results, *function.parameters], names_of(given)
        if not len(given) == len(formal) == len(actual):
            raise NotUnderstood(f"the parameters of a call: {text}")
        names = dict(zip(formal, actual, strict=True))
        return Call(name.name, names, f"the end of call {self.opened}", self.source)

    def read_called(
        self,
        call: "Call",
        guard: Register | None,
        inverted: bool,
        where: tuple[str, int, Source | None],
    ) -> None:
        function, outer, end = self.functions[call.name], self.scopes[-1][0], Symbol(call.end)
        if guard is not None:
            self.add("bra", [], (end,), guard, not inverted, where)
        self.open_scope(call.names)
        self.calls.append(call)
        self.read(function.start, function.end)
        self.calls.pop()
        self.close_scope()
        self.source = where[2]
        if len(self.program.instructions) > MOST:
            raise NotUnderstood(f"more than {MOST} instructions with those that are called")
        self.program.labels[outer, call.end] = len(self.program.instructions)

    def meant(self, name: str) -> str:
        """The variable that a name stands for in the calls that are open."""
        return next((names[name] for names in reversed(self.aliases) if name in names), name)

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
            return self.address_or_box(text[1:-1].strip())
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
        if text == "WARP_SZ":
            return Immediate("32")
        found = self.register(text)
        if found is not None:
            return found
        match = OFFSET.match(text)
        if match is None:
            raise NotUnderstood(f"the operand {text}")
        return Symbol(self.meant(match[1]), int(match[2] or match[3] or "0", 0))

    def address_or_box(self, text: str) -> Address | Box:
        if "{" not in text:
            return self.address(text)
        of, corner = (part.strip() for part in split_top(text))
        coordinates = tuple(self.operand(part) for part in split_top(corner[1:-1]))
        return Box(self.address(of), Vector(coordinates))

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
def read_body(
    text: Text, start: int, end: int, functions: dict[str, Function] | None = None
) -> Program:
    return Reader(text, functions or {}).read(start, end)


def read_function(start: int, end: int, parameters: str, results: str) -> Function:
    names = (tuple(p.name for p in read_parameters(part)) for part in (parameters, results))
    return Function(start, end, *names)


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
