"""
Copies of somebody's file with a change, loaded without a file and with what does not hang on the
text taken from the original; and which of its lines a call runs.
"""

import __future__

import ast
import linecache
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from attnverify.backends.functions import functions_of, guess_operation, implementations
from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.backends.source import parse_source
from attnverify.repair.changes import Change

NAME = "_attnverify_copy"


class Copies:
    """Loads copies of the file of an implementation."""

    def __init__(self, own: Implementation, folder: str) -> None:
        self.own, self.folder, self.codes = own, folder, dict[str, CodeType]()
        self.place = parse_source(own.backend.source).place
        self.text = Path(self.place).read_text()
        flags = compile(self.text, self.place, "exec", dont_inherit=True).co_flags
        self.flags = flags & __future__.annotations.compiler_flag
        self.name, self.path = self.find_function()

    def compiled(self, text: str) -> CodeType:
        if text not in self.codes:
            self.codes[text] = compile(text, self.place, "exec", self.flags, dont_inherit=True)
        return self.codes[text]

    def executed(self, codes: list[CodeType]) -> ModuleType:
        """A module of its own, made of its statements."""
        module = sys.modules[NAME] = ModuleType(NAME)
        module.__file__ = self.place
        for code in codes:
            exec(code, module.__dict__)
        return module

    def original(self) -> Implementation | None:
        """The file as it is, loaded afresh."""
        return self.found_in([self.compiled(self.text)]) if self.path else None

    def changed(self, change: Change) -> Implementation | None:
        """The implementation of a file with a change; None where there is none."""
        if not self.path:
            return self.written(change)
        if self.own.backend.has_kernels:  # Triton reads their source
            lines = change.text.splitlines(keepends=True)
            linecache.cache[self.place] = len(change.text), None, lines, self.place
            return self.found_in([compile(change.text, self.place, "exec", dont_inherit=True)])
        codes = [*map(self.compiled, change.statements)]
        del self.codes[change.statements[change.at]]
        return self.found_in(codes)

    def found_in(self, codes: list[CodeType]) -> Implementation | None:
        """The implementation of a file of these statements; None where it has none."""
        found: Any = self.executed(codes)
        for name in self.path:
            found = getattr(found, name)
        backend = replace(self.own.backend, notes=[], refused=[], copy=None)
        backend.implementations = [*implementations(backend, {self.name: found})]
        return with_name(backend.implementations, self.own.name)

    def written(self, change: Change) -> Implementation | None:
        """The same, loaded as every file can be."""
        path = Path(self.folder) / Path(self.place).name
        path.write_text(change.text)
        source = str(path) + self.own.backend.source.removeprefix(self.place)
        return with_name(load(source).implementations, self.own.name)

    def find_function(self) -> tuple[str, tuple[str, ...]]:
        """Under which name, and where, a file has the function; nowhere where it is made of it."""
        own, asked = self.own, parse_source(self.own.backend.source)
        if own.backend.machine or own.backend.by_name or not Path(self.place).is_file():
            return own.name, ()
        module = self.executed([self.compiled(self.text)])
        functions = functions_of(asked, [module])
        if guess := guess_operation(functions, own.backend):
            functions = {guess[0]: guess[1]}
        forward = f"{own.operation.forward.name}_{own.how}".removesuffix("_")
        name = own.name if own.name in functions else forward
        if asked.function:
            return name, tuple(asked.function.split("."))
        things = vars(module).items()
        found = [own for own, thing in things if thing is functions.get(name)]
        return name, tuple(found[:1])


def with_name(found: Iterable[Implementation], name: str) -> Implementation | None:
    return next((one for one in found if one.name == name), None)


def lines_run(place: str, call: Callable[[], object]) -> set[int]:
    """Which lines of a file a call runs."""
    lines = set[int]()

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != place:
            return None
        if event == "line":
            lines.add(frame.f_lineno)
        return enter

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def reached_in(text: str, runs: Sequence[set[int]]) -> Callable[[ast.stmt], bool]:
    """
    Whether every one of these calls runs a statement: no other can have made all of them wrong. Of
    a kernel, which is decorated, nobody sees what it runs.
    """
    common, seen = set.intersection(*runs), set.union(*runs)
    kernels = set[int]()
    for one in ast.walk(ast.parse(text)):
        if isinstance(one, ast.FunctionDef) and one.decorator_list:
            lines = range(one.body[0].lineno, (one.end_lineno or one.lineno) + 1)
            kernels |= {*lines} if seen.isdisjoint(lines) else set()

    def is_reached(statement: ast.stmt) -> bool:
        blocks = [x.lineno for x in ast.iter_child_nodes(statement) if isinstance(x, ast.stmt)]
        end = min(blocks, default=(statement.end_lineno or statement.lineno) + 1)
        lines = range(statement.lineno, max(end, statement.lineno + 1))
        return any(line in common or line in kernels for line in lines)

    return is_reached
