"""
The text of a file with one thing changed: a statement moved or left out, an operator, a number, an
argument or a name for another, a part for another part of the same function.

What a mend needs stands in the file for most slips (Martinez, Weimer and Monperrus, "Do the fix
ingredients already exist?", ICSE 2014, arXiv 1403.6322).
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv)
COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
INGREDIENTS = (ast.Name, ast.BinOp, ast.Subscript, ast.Call, ast.Attribute)
PLACES = (
    *(ast.Assign, ast.AugAssign, ast.Call, ast.BinOp, ast.Return, ast.Tuple, ast.Slice),
    *(ast.Subscript, ast.keyword, ast.Compare),
)
FARTHEST = 5
"""So many statements further down a statement may be moved."""


@dataclass(frozen=True)
class Change:
    """One change of a file: in words, with its line, and the whole text with it."""

    words: str
    text: str


def single_changes(text: str) -> Iterator[Change]:
    """
    List the changes of a file's functions, each text once: what is likelier, and rarer, first.
    Raises SyntaxError for what is no Python.
    """
    file, seen = File(ast.parse(text)), {ast.unparse(ast.parse(text))}
    for changes in (file.of_statements, file.of_parts, file.of_names, file.of_ingredients):
        for words, tree in changes():
            changed = ast.unparse(ast.fix_missing_locations(tree))
            if changed not in seen:
                seen.add(changed)
                yield Change(words, changed)


Found = Iterator[tuple[str, ast.AST]]


class File:
    """A parsed file whose parts know what they stand in."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.functions = [x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef)]
        self.parents: dict[ast.AST, tuple[ast.AST, str, int | None]] = {}
        for parent in ast.walk(tree):
            for field, own in ast.iter_fields(parent):
                if isinstance(own, list):
                    self.parents |= {x: (parent, field, k) for k, x in enumerate(own) if is_node(x)}
                elif isinstance(own, ast.AST):
                    self.parents[own] = parent, field, None

    def parts(self) -> Iterator[tuple[ast.FunctionDef, Any]]:
        """Each expression and its innermost function; no annotations or defaults."""
        for function in self.functions:
            for statement in function.body:
                if not isinstance(statement, ast.FunctionDef):
                    yield from ((function, x) for x in ast.walk(statement) if x in self.parents)

    def replaced(self, old: Any, new: ast.AST) -> tuple[str, ast.AST]:
        """The file with a part replaced, and that in words."""
        (parent, field, at), memo = self.parents[old], dict[int, Any]()
        tree = copy.deepcopy(self.tree, memo)
        if at is None:
            setattr(memo[id(parent)], field, copy.deepcopy(new))
        else:
            getattr(memo[id(parent)], field)[at] = copy.deepcopy(new)
        return f"line {old.lineno}: `{ast.unparse(old)}` as `{ast.unparse(new)}`", tree

    def of_statements(self) -> Found:
        """Statements that stand behind one of those that follow them, or are left out."""
        for block in ast.walk(self.tree):
            for field in ("body", "orelse"):
                own = getattr(block, field, None)
                if isinstance(own, list) and not isinstance(block, (ast.Module, ast.ClassDef)):
                    yield from self.of_block(block, field, own)

    def of_block(self, block: ast.AST, field: str, own: list[Any]) -> Found:
        for at, statement in enumerate(own):
            if isinstance(statement, (ast.Return, ast.FunctionDef)) or is_docstring(statement):
                continue
            first = ast.unparse(statement).splitlines()[0]
            for to in range(at + 1, min(at + 1 + FARTHEST, len(own))):
                if isinstance(own[to], ast.Return):
                    break
                tree, moved = self.with_block(block, field)
                moved.insert(to, moved.pop(at))
                yield f"line {statement.lineno}: `{first}` behind line {own[to].end_lineno}", tree
            if len(own) > 1:
                tree, fewer = self.with_block(block, field)
                del fewer[at]
                yield f"line {statement.lineno}: without `{first}`", tree

    def with_block(self, block: ast.AST, field: str) -> tuple[ast.AST, list[Any]]:
        """A copy of the file, and of a block in it."""
        memo: dict[int, Any] = {}
        tree = copy.deepcopy(self.tree, memo)
        return tree, getattr(memo[id(block)], field)

    def of_parts(self) -> Found:
        for _, part in self.parts():
            for new in others(part):
                yield self.replaced(part, new)

    def of_names(self) -> Found:
        """A name for another of its function, or for an argument wherever that is given."""
        for function, part in self.parts():
            if not is_read(part):
                continue
            arguments = [x.arg for x in (*function.args.args, *function.args.kwonlyargs)]
            named = (x for x in ast.walk(function) if isinstance(x, ast.Name))
            made = {x.id for x in named if not is_read(x)}
            for name in sorted({*arguments, *made} - {part.id}):
                yield self.replaced(part, ast.Name(name, ast.Load()))
            for name in arguments:
                if name != part.id:
                    given = ast.parse(f"{part.id} if {name} is None else {name}", mode="eval")
                    yield self.replaced(part, given.body)

    def of_ingredients(self) -> Found:
        """A part for another of the same function."""
        for function, part in self.parts():
            parent = self.parents[part][0]
            if not (isinstance(part, INGREDIENTS) and isinstance(parent, PLACES)):
                continue
            if isinstance(getattr(part, "ctx", None), ast.Store):
                continue
            for text, other in ingredients(function).items():
                if text != ast.unparse(part):
                    yield self.replaced(part, other)


def ingredients(function: ast.FunctionDef) -> dict[str, ast.AST]:
    """The expressions of a function that are more than a name, by their text."""
    found: dict[str, ast.AST] = {}
    for part in ast.walk(function):
        is_stored = isinstance(getattr(part, "ctx", None), ast.Store)
        if isinstance(part, INGREDIENTS[1:]) and not is_stored:
            found.setdefault(ast.unparse(part), part)
        elif isinstance(part, ast.Assign):
            found.setdefault(ast.unparse(part.value), part.value)
    return found


def others(part: Any) -> Iterator[ast.AST]:
    """What a part may be instead, made of itself alone."""
    if isinstance(part, ast.BinOp):
        yield from (part.left, part.right)
        for operator in OPERATORS:
            if not isinstance(part.op, operator):
                yield ast.BinOp(part.left, operator(), part.right)
        yield ast.BinOp(part.right, part.op, part.left)
        yield from (ast.BinOp(part, step(), ast.Constant(1)) for step in (ast.Add, ast.Sub))
    elif isinstance(part, ast.Constant):
        yield from map(ast.Constant, other_constants(part.value))
    elif isinstance(part, ast.Compare) and len(part.ops) == 1:
        for comparison in COMPARISONS:
            yield ast.Compare(part.left, [comparison()], part.comparators)
    elif isinstance(part, ast.UnaryOp):
        yield part.operand
    elif isinstance(part, ast.IfExp):
        yield from (part.body, part.orelse)
    elif isinstance(part, ast.BoolOp):
        yield from part.values
    elif isinstance(part, ast.Call):
        yield from other_calls(part)


def other_constants(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value - 1, -value, 2 * value, value // 2)
    return (-value, 2 * value, value / 2) if isinstance(value, float) else ()


def other_calls(part: ast.Call) -> Iterator[ast.AST]:
    """A call without itself, with two arguments exchanged, or without one that has a name."""
    if len(part.args) == 1 and not part.keywords:
        yield part.args[0]
    if isinstance(part.func, ast.Attribute):
        yield part.func.value
    for at in range(len(part.args) - 1):
        turned = [*part.args[:at], part.args[at + 1], part.args[at], *part.args[at + 2 :]]
        yield ast.Call(part.func, turned, part.keywords)
    for at in range(len(part.keywords)):
        yield ast.Call(part.func, part.args, part.keywords[:at] + part.keywords[at + 1 :])


def is_node(thing: Any) -> bool:
    return isinstance(thing, ast.AST)


def is_read(part: Any) -> bool:
    """Tell whether a part is a name whose value is taken."""
    return isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)


def is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
