"""What a PTX text is made of, and the lines that its parts come from."""

import re
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

from attnverify.ptx.findings import NotUnderstood, Source
from attnverify.ptx.text.operands import Operand, Register, Symbol

__all__ = ["LABEL", "RESULT", "Instruction", "Parameter", "Program", "Text", "Variable"]

RESULT = "what came out"
"""Of a barrier at which threads vote: the second of the two instructions that it is read as."""

ENDING = Symbol("__assertfail")

LABEL = re.compile(r"([%$\w]+)\s*:(?!:)\s*")
LINE = re.compile(r"\.(?:loc|file)\s")
LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+(?:.*?inlined_at\s+(\d+)\s+(\d+))?")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
INLINE = re.compile(r"// begin inline asm\n.*?// end inline asm", re.DOTALL)
"""The compiler of Triton 3.9 counts the lines of such a passage as those of the file."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """
    One instruction: ``add`` with its modifiers and operands, guarded or not, and where it stands.
    """

    name: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    inverted: bool
    text: str
    line: int
    source: Source | None
    index: int
    scopes: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel in the block of bytes that a launch hands over."""

    name: str
    offset: int
    size: int
    align: int
    kind: str

    @property
    def told(self) -> str:
        """Its name; compilers call it by the kernel's mangled name and a number."""
        return re.sub(r".*_param_(\d+)$", r"argument \1", self.name)


@dataclass(frozen=True)
class Variable:
    """A variable of a state space; its first bytes, if it is given any."""

    name: str
    space: str
    align: int
    size: int
    initial: bytes = b""


def blank(match: re.Match[str]) -> str:
    """Keep the lines, and the place of what comes behind."""
    return re.sub(r"[^\n]", " ", match[0])


class Text:
    """
    A PTX text without its comments, that knows the line of every place and the file of every
    number.
    """

    def __init__(self, text: str) -> None:
        text = INLINE.sub(lambda match: re.sub(r"\.loc\s[^\n]*", blank, match[0]), text)
        self.text = COMMENT.sub(blank, text)
        self.breaks = [match.start() for match in re.finditer("\n", self.text)]
        self.files = {
            int(number): path
            for number, path in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.MULTILINE)
        }

    def line(self, at: int) -> int:
        return bisect(self.breaks, at) + 1

    def source(self, directive: str) -> Source | None:
        found = LOC.match(directive)
        if found is None or int(found[2]) == 0:
            return None
        inlined = (
            None if found[3] is None else Source(self.files.get(int(found[3]), "?"), int(found[4]))
        )
        return Source(self.files.get(int(found[1]), "?"), int(found[2]), inlined)

    def statements(self, start: int, end: int) -> Iterator[tuple[int, str]]:
        """Braces, labels, directives and instructions of a body, each with its place."""
        at, text = start, self.text
        while True:
            while at < end and text[at] in " \t\r\n;":
                at += 1
            if at >= end:
                return
            label = LABEL.match(text, at, end)
            if text[at] in "{}":
                stop = at + 1
            elif label:
                stop = label.end()
            elif LINE.match(text, at):
                stop = text.find("\n", at) % (end + 1)
            else:
                stop = text.index(";", at, end)
            yield at, text[at:stop].strip()
            at = stop

    def closing(self, opening: int) -> int:
        """Find the place of the brace that closes the one at this place."""
        depth = 0
        for match in re.compile(r"[{}]").finditer(self.text, opening):
            depth += 1 if match[0] == "{" else -1
            if depth == 0:
                return match.start()
        raise NotUnderstood(f"line {self.line(opening)}: a brace that nothing closes")


@dataclass
class Program:
    """The body of a kernel."""

    instructions: list[Instruction] = field(default_factory=list)
    registers: list[Register] = field(default_factory=list)
    labels: dict[tuple[int, str], int] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)
    """Labels that ``brx`` chooses among, by the label before them."""
    variables: list[Variable] = field(default_factory=list)

    def target(self, name: str, scopes: tuple[int, ...]) -> int:
        """
        Find the index of the instruction behind a label, looked up from the innermost scope
        outwards.
        """
        for scope in reversed(scopes):
            if (scope, name) in self.labels:
                return self.labels[scope, name]
        raise NotUnderstood(f"the label {name} is nowhere")

    def stops(self, index: int) -> bool:
        """Tell whether threads at an instruction go straight to the end of an assertion."""
        for of in self.instructions[index:]:
            if of.name == "trap" or (of.name == "call" and ENDING in of.operands):
                return True
            if of.name in ("bra", "brx", "ret", "exit", "bar", "barrier"):
                return False
        return False
