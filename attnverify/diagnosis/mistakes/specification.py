"""
The specification's own text with one thing changed, in the words of its line: "`N + i * M + j` as
`N + i * M - j`, spec/shifts.py:92". What no table of mistakes has may be a single slip too.

An operation's text is its own function and all of spec/ that this calls. A mutant is that function
anew, with its callers; what lies beside answers from what it said in the specification's own run.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache, partial
from inspect import isgeneratorfunction
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import map_leaves
from attnverify.inputs.recipe import Inputs
from attnverify.specified.mutants.slips import with_
from attnverify.specified.mutants.source import (
    Source,
    changed_function,
    changes,
    describe,
    is_renamed,
    is_rounded,
    read_source,
)
from attnverify.specified.mutants.stand_ins import STAND_INS

SHORT = 8
"""Fewer letters of a line say too little."""
SPEC, CONTRACT = "attnverify.spec.", "attnverify.contract."
Names = dict[str, Any]
Mistake = tuple[str, Callable[[Operation, Inputs], Any], int]
"""Its words, what it answers, and its rank: the change of a sign before that of a name."""


def text_mistakes(operation: Operation, inputs: Inputs) -> Iterator[Mistake]:
    """
    Yield the operation with each single change of the text that these inputs come to, but for what
    is only rounded, and for names of another kind of thing.
    """
    text = text_of(operation.name)
    text.run(inputs)
    for function in text.functions:
        source = read_source(function, f"spec/{Path(function.__code__.co_filename).name}")
        kinds = text.kinds.get(function)
        if source is None or kinds is None:
            continue
        for old, new in changes(source.function):
            if is_rounded(new) or not alike(old, new, kinds):
                continue
            changed = partial(changed_function, source, old, new)
            answer = partial(text.answer, function, changed)
            words = describe(*widened(source, old, new), source.place(old))
            yield words, answer, 3 + is_renamed(old, new)


def alike(old: ast.AST, new: ast.AST, kinds: dict[str, Any]) -> bool:
    """Tell whether a name stands for another of its kind, or something else is changed."""
    if isinstance(old, ast.Name) and isinstance(new, ast.Name):
        return bool(kinds.get(old.id) == kinds.get(new.id))
    return True


def widened(source: Source, old: Any, new: Any) -> tuple[Any, Any]:
    """Tell a short part, or one that its line has twice, by what it stands in."""
    line = ast.unparse(source.statement(old))
    while not hasattr(new, "told") and is_ambiguous(ast.unparse(old), line):
        parent, field = source.parents[id(old)]
        if not isinstance(parent, ast.expr):
            break
        own = getattr(parent, field)
        other = [new if each is old else each for each in own] if isinstance(own, list) else new
        old, new = parent, with_(parent, **{field: other})
    return old, new


def is_ambiguous(part: str, line: str) -> bool:
    return len(part) < SHORT or line.count(part) > 1


@lru_cache
def text_of(operation: str) -> "Text":
    return Text(CATALOGUE[operation].specification)


class Text:
    """An operation's own function, and the functions of spec/ that it calls, nearest first."""

    def __init__(self, top: Any) -> None:
        self.top: FunctionType = top
        self.functions = [top]
        for function in self.functions:
            self.functions += (x for x in called_by(function) if x not in self.functions)
        self.kept: dict[Any, Any] = {}
        self.kinds: dict[FunctionType, dict[str, Any]] = {}
        self.links: dict[FunctionType, tuple[dict[str, Names], FunctionType]] = {}
        self.inputs: Inputs | None = None
        self.expected: Any = None

    @cached_property
    def own(self) -> dict[str, Names]:
        """The names of each module, with functions that answer from what they have said."""
        return {
            f.__module__: {
                name: partial(self.said, x) if is_kept(x) else x
                for name, x in f.__globals__.items()
            }
            | STAND_INS
            for f in self.functions
        }

    def said(self, function: FunctionType, *given: Any, **named: Any) -> Any:
        """
        What a function says: what it has said, where the specification's run has asked that, and it
        only says it.
        """
        key = function, key_of(given), key_of(named)
        if key in self.kept:
            return map_leaves(copied, self.kept[key])
        found = function(*given, **named)
        if self.inputs is None and key == (function, key_of(given), key_of(named)):
            self.kept[key] = map_leaves(copied, found)
        return found

    def run(self, inputs: Inputs) -> None:
        """
        Run the specification as it is; keep what its functions say, and of what kind each of their
        names is.
        """
        if self.inputs is inputs:
            return
        self.inputs, self.kept, self.kinds = None, {}, {}
        _, top = self.linked(self.top)
        before = sys.getprofile()
        sys.setprofile(self.note_kinds)
        try:
            self.expected = top(**map_leaves(read_only, inputs))
        finally:
            sys.setprofile(before)
        self.inputs = inputs

    def note_kinds(self, frame: FrameType, event: str, _: Any) -> None:
        """Note the kinds of the names of a function that returns."""
        if event == "return" and (function := self.codes.get(frame.f_code)):
            own = self.kinds.setdefault(function, {})
            own |= {name: kind_of(x) for name, x in frame.f_locals.items()}

    @cached_property
    def codes(self) -> dict[CodeType, FunctionType]:
        """The functions by their code, and by that of what stands within."""
        return {code: f for f in self.functions for code in codes_in(f.__code__)}

    def linked(self, function: FunctionType) -> tuple[dict[str, Names], FunctionType]:
        """Names of each module in which the callers of a function call what stands there for it."""
        if function not in self.links:
            self.links[function] = self.link(function)
        return self.links[function]

    def link(self, function: FunctionType) -> tuple[dict[str, Names], FunctionType]:
        """Make the names, and the callers anew."""
        callers = self.callers_of(function)
        names = {f.__module__: dict(self.own[f.__module__]) for f in callers}
        anew = {f: with_globals(f, names[f.__module__]) for f in callers}
        for f in callers:
            for module, name in self.places_of(f):
                if module in names:
                    names[module][name] = anew[f]
        return names, anew[self.top]

    def callers_of(self, function: FunctionType) -> list[FunctionType]:
        """List a function, and those that call it, through others too."""
        found = [function]
        for one in found:
            found += (f for f in self.functions if one in called_by(f) and f not in found)
        return found

    def places_of(self, function: FunctionType) -> list[tuple[str, str]]:
        """List the modules and names that a function has."""
        return [
            (f.__module__, name)
            for f in {each.__module__: each for each in self.functions}.values()
            for name, x in f.__globals__.items()
            if x is function
        ]

    def answer(
        self,
        function: FunctionType,
        changed: Callable[[Names], Callable[..., Any]],
        operation: Operation,
        inputs: Inputs,
    ) -> Any:
        """Answer with one function changed; raises whatever a change that makes no sense does."""
        self.run(inputs)
        if function not in self.kinds:
            return self.expected
        names, top = self.linked(function)
        other = changed(names[function.__module__])
        for module, name in self.places_of(function):
            if module in names:
                names[module][name] = other
        return (other if function is self.top else top)(**map_leaves(read_only, inputs))


def called_by(function: FunctionType) -> list[FunctionType]:
    """List the functions of spec/ whose names stand in a function's code."""
    found = (function.__globals__.get(name) for name in names_in(function.__code__))
    return [x for x in found if isinstance(x, FunctionType) and x.__module__.startswith(SPEC)]


def names_in(code: CodeType) -> list[str]:
    return [name for each in codes_in(code) for name in each.co_names]


def codes_in(code: CodeType) -> list[CodeType]:
    """List a code and those of its comprehensions."""
    inner = (x for x in code.co_consts if isinstance(x, CodeType))
    return [code, *(each for one in inner for each in codes_in(one))]


def kind_of(x: Any) -> Any:
    return (x.dtype.kind, x.ndim) if isinstance(x, ndarray) else type(x)


def is_kept(x: Any) -> bool:
    """Tell whether what a function says may be kept: it is the law's, and no iterator."""
    own = isinstance(x, FunctionType) and x.__module__.startswith((SPEC, CONTRACT))
    return own and not isgeneratorfunction(x)


def with_globals(function: FunctionType, names: Names) -> FunctionType:
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def read_only(x: Any) -> Any:
    """A view that nobody writes to, of an array."""
    if isinstance(x, ndarray):
        x = x.view()
        x.flags.writeable = False
    return x


def copied(x: Any) -> Any:
    return x.copy() if isinstance(x, ndarray) else x


def key_of(x: Any) -> Any:
    """What two arguments have in common that are the same to a function."""
    if isinstance(x, ndarray):
        return x.shape, x.dtype.str, x.tobytes()
    if isinstance(x, dict):
        return tuple((name, key_of(each)) for name, each in x.items())
    if isinstance(x, list | tuple):
        return type(x), *map(key_of, x)
    return type(x), x if isinstance(x, int | float | complex | str | None) else id(x)
