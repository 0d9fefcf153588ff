"""
A parsed file whose parts know what they stand in, and what is done to them: one put in the place of
another until the next is asked for, several of them at once, statements of a block in another
order.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from textwrap import shorten
from typing import Any

from attnverify.specified.mutants.source import short_apart

Found = Iterator[tuple[int, str, int]]
"""The line, words and statement of a change that stands in the tree until the next is asked for."""
Function = ast.FunctionDef


class File:
    """A parsed file whose parts know what they stand in."""

    def __init__(self, tree: ast.Module, is_reached: Callable[[ast.stmt], bool]) -> None:
        self.tree, self.is_reached = tree, is_reached
        self.statements = [*map(ast.unparse, tree.body)]
        self.functions = [x for x in ast.walk(tree) if isinstance(x, Function)]
        self.top = {x: at for at, own in enumerate(tree.body) for x in ast.walk(own)}
        self.parents: dict[ast.AST, tuple[ast.AST, str, int | None]] = {}
        for parent in ast.walk(tree):
            for field, own in ast.iter_fields(parent):
                if isinstance(own, list):
                    self.parents |= {x: (parent, field, k) for k, x in enumerate(own) if is_node(x)}
                elif isinstance(own, ast.AST):
                    self.parents[own] = parent, field, None
        self.parts = [(f, x) for f in self.functions for x in self.parts_of(f)]

    def parts_of(self, function: Function) -> Iterator[Any]:
        """Each expression whose innermost function this is; no annotations or defaults."""
        left: list[ast.AST] = [*function.body]
        for one in left:  # it grows meanwhile
            if not isinstance(one, Function):
                left += ast.iter_child_nodes(one)
                if isinstance(one, ast.stmt) and self.is_reached(one):
                    yield from (x for x in inside(one) if x in self.parents)

    def statement_of(self, part: ast.AST) -> ast.AST:
        """The statement that a part stands in."""
        while not isinstance(part, ast.stmt):
            part = self.parents[part][0]
        return part

    def around(self, function: ast.AST) -> Iterator[Function]:
        """A function, and those that it stands in."""
        while function is not self.tree:
            if isinstance(function, Function):
                yield function
            function = self.parents[function][0]

    def replaced(self, old: Any, new: ast.AST) -> Found:
        """Put a part in the place of another, and that back."""
        one, other = short_apart(ast.unparse(new), ast.unparse(old))
        words = f"with `{one}` instead of `{other}`"
        parent, field, at = self.parents[old]
        put(parent, field, at, new)
        try:
            yield old.lineno, words, self.top[parent]
        finally:
            put(parent, field, at, old)

    def both_replaced(self, old: Any, new: ast.AST, other: Any, grown: ast.AST) -> Found:
        """Put two parts in the places of two others, and those back."""
        for line, words, at in self.replaced(old, new):
            for second, more, _ in self.replaced(other, grown):
                where = f" in line {second}" if second != line else ""
                yield line, f"{words}, {more}{where}", at

    def all_replaced(self, old: Sequence[Any], new: Callable[[Any], ast.AST], words: str) -> Found:
        """Put another part in the place of each of these, the innermost first, and those back."""
        if not old:
            yield 0, words, 0
            return
        first, *others = old
        for line, _, at in self.replaced(first, new(first)):
            for _ in self.all_replaced(others, new, words):
                yield line, words, at

    def with_block(self, block: Any, field: str, new: list[Any], line: int, words: str) -> Found:
        old = getattr(block, field)
        setattr(block, field, new)
        try:
            yield line, words, self.top[block]
        finally:
            setattr(block, field, old)

    def blocks(self, whole: ast.AST) -> Iterator[tuple[ast.AST, str, list[Any]]]:
        """List the lists of statements inside of functions."""
        for block in ast.walk(whole):
            for field in ("body", "orelse"):
                own = getattr(block, field, None)
                if isinstance(own, list) and not isinstance(block, (ast.Module, ast.ClassDef)):
                    yield block, field, own


def inside(statement: ast.stmt) -> Iterator[ast.AST]:
    """The parts of a statement, without the statements in it."""
    left: list[ast.AST] = [statement]
    for one in left:
        yield one
        left += (x for x in ast.iter_child_nodes(one) if not isinstance(x, ast.stmt))


def put(parent: ast.AST, field: str, at: int | None, new: ast.AST) -> None:
    if at is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[at] = new


def is_node(thing: Any) -> bool:
    return isinstance(thing, ast.AST)


def first_line(statement: ast.stmt) -> str:
    return shown(statement, ast.unparse(statement).splitlines()[0])


def shown(part: ast.AST, text: str = "") -> str:
    """The text of a part, in a line."""
    return shorten(text or ast.unparse(part), 56, placeholder=" ...")
