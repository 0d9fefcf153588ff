"""
The text of a file with one thing changed: a statement moved, left out or repeated, an operator, a
number, an argument or a name for another, a part for another part of the same function, a part
times a name.

What a mend needs stands in the file for most slips (Martinez, Weimer and Monperrus, "Do the fix
ingredients already exist?", ICSE 2014, arXiv 1403.6322).
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from textwrap import shorten
from typing import Any

OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv)
COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
INGREDIENTS = (ast.Name, ast.BinOp, ast.Subscript, ast.Call, ast.Attribute)
PLACES = (
    *(ast.Assign, ast.AugAssign, ast.Call, ast.BinOp, ast.Return, ast.Tuple, ast.Slice),
    *(ast.Subscript, ast.keyword, ast.Compare),
)
SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr)
FARTHEST = 5
"""So many statements further down a statement may be moved."""
GROWN = (
    "x ** 0.5",
    "1 / x",
    "-x",
    "~x",
    "1 - x",
    "x[..., None]",
    "x.swapaxes(-1, -2)",
    "x * (x > 0)",
)
GROWN_BY = ("x * y", "x / y", "x + y", "x - y")
"""What a part may become, alone and with a name of its function."""


@dataclass(frozen=True)
class Change:
    """
    One change of a file: its line, in words, and the texts of the file's statements with it, of
    which one, ``at``, is another.
    """

    line: int
    words: str
    statements: tuple[str, ...]
    at: int

    @property
    def text(self) -> str:
        return "\n".join(self.statements)


def single_changes(
    text: str, is_reached: Callable[[ast.stmt], bool] = lambda _: True
) -> Iterator[Change]:
    """
    List the changes of the statements of a file's functions that are reached, each text once: what
    is likelier, and rarer, first. Raises SyntaxError for what is no Python.
    """
    file = File(ast.parse(text), is_reached)
    kinds = (
        *(file.of_statements, file.of_parts, file.of_names, file.of_grown, file.of_numbers),
        *(
            file.of_words,
            file.of_attributes,
            file.of_ingredients,
            file.of_grown_by_names,
            file.of_repeated,
        ),
    )
    seen = {*file.statements}
    for line, words, at in chain.from_iterable(kind() for kind in kinds):
        if (changed := ast.unparse(file.tree.body[at])) not in seen:
            seen.add(changed)
            own = file.statements
            yield Change(line, words, (*own[:at], changed, *own[at + 1 :]), at)


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

    def replaced(self, old: Any, new: ast.AST) -> Found:
        """Put a part in the place of another, and that back."""
        words = f"with `{shown(new)}` instead of `{shown(old)}`"
        parent, field, at = self.parents[old]
        put(parent, field, at, new)
        try:
            yield old.lineno, words, self.top[parent]
        finally:
            put(parent, field, at, old)

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

    def of_statements(self) -> Found:
        """Statements that are left out, or stand behind one of those that follow them."""
        for block, field, own in self.blocks(self.tree):
            for at, one in enumerate(own):
                is_fixed = isinstance(one, (ast.Return, Function)) or is_docstring(one)
                if is_fixed or not self.is_reached(one):
                    continue
                first, others = first_line(one), [*own[:at], *own[at + 1 :]]
                if others:
                    words = f"without `{first}`"
                    yield from self.with_block(block, field, others, one.lineno, words)
                for to in range(at + 1, min(at + 1 + FARTHEST, len(own))):
                    if isinstance(own[to], ast.Return):
                        break
                    moved = [*others[:to], one, *others[to:]]
                    words = f"with `{first}` behind line {own[to].end_lineno}"
                    yield from self.with_block(block, field, moved, one.lineno, words)

    def of_repeated(self) -> Found:
        """Statements of a function that stand in a second place of it too."""
        for function in self.functions:
            once = [x for x in ast.walk(function) if isinstance(x, SIMPLE) and not is_docstring(x)]
            for block, field, own in self.blocks(function):
                for at, near in enumerate(own):
                    for one in once if self.is_reached(near) else ():
                        more, first = [*own[:at], one, *own[at:]], first_line(one)
                        words = f"with `{first}` before it too"
                        yield from self.with_block(block, field, more, near.lineno, words)

    def of_parts(self) -> Found:
        for _, part in self.parts:
            for new in others_of(part):
                yield from self.replaced(part, new)

    def of_names(self) -> Found:
        """A name for another of its function, or for an argument wherever that is given."""
        for function, part in self.parts:
            for name in names_of(function) if is_read(part) or is_place(part) else ():
                if name != getattr(part, "id", ""):
                    yield from self.replaced(part, ast.Name(name, ast.Load()))
            for name in arguments_of(function) if is_read(part) else ():
                if name != part.id:
                    given = expression(f"{part.id} if {name} is None else {name}")
                    yield from self.replaced(part, given)

    def of_attributes(self) -> Found:
        """What an object has for another that the file gives it, also in the place of a number."""
        own = [x for x in ast.walk(self.tree) if isinstance(x, ast.Attribute)]
        methods = [x for x in self.functions if isinstance(self.parents[x][0], ast.ClassDef)]
        found = {ast.unparse(x): (ast.unparse(x.value), x.attr) for x in own}
        found |= {f"self.{x.name}": ("self", x.name) for x in methods if x.name[:2] != "__"}
        for _, part in self.parts:
            is_index = is_place(part) and isinstance(self.parents[part][0], ast.Subscript)
            base = ast.unparse(part.value) if isinstance(part, ast.Attribute) else ""
            for value, name in found.values() if base or is_index else ():
                if value == (base or "self") and name != getattr(part, "attr", ""):
                    yield from self.replaced(part, expression(f"{value}.{name}"))

    def of_words(self) -> Found:
        """A word for another that its function has: the name of a weight, an option."""
        found = dict[Function, dict[str, None]]()
        strings = [(f, x) for f, x in self.parts if isinstance(getattr(x, "value", None), str)]
        for function, part in strings:
            found.setdefault(function, {})[part.value] = None
        for function, part in strings:
            for word in found[function]:
                yield from self.replaced(part, ast.Constant(word))

    def of_numbers(self) -> Found:
        """Numbers that the file gives a name which its functions read."""
        read = {x.id for _, x in self.parts if is_read(x)}
        for one in self.tree.body:
            if isinstance(one, ast.Assign) and any(is_named(x, read) for x in one.targets):
                for part in ast.walk(one.value):
                    for new in others_of(part):
                        yield from self.replaced(part, new)

    def of_ingredients(self) -> Found:
        """A part for another of the same function."""
        found = {function: ingredients(function) for function in self.functions}
        for function, part in self.parts:
            if isinstance(part, INGREDIENTS) and isinstance(self.parents[part][0], PLACES):
                own = ast.unparse(part)
                for text, other in found[function].items():
                    if not is_stored(part) and text != own:
                        yield from self.replaced(part, other)

    def of_grown(self) -> Found:
        for _, part in self.growing():
            for form in GROWN:
                yield from self.replaced(part, filled(form, x=part))

    def of_grown_by_names(self) -> Found:
        """A part with a name of its function beside it."""
        for function, part in self.growing():
            for name in names_of(function):
                for form in GROWN_BY:
                    grown = filled(form, x=part, y=ast.Name(name, ast.Load()))
                    yield from self.replaced(part, grown)

    def growing(self) -> Iterator[tuple[Function, Any]]:
        """The parts that are values: no functions, no modules."""
        for function, part in self.parts:
            if not isinstance(part, INGREDIENTS) or is_stored(part):
                continue
            parent, field, _ = self.parents[part]
            if field != "func" and (field != "value" or not isinstance(parent, ast.Attribute)):
                yield function, part


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


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def filled(form: str, **given: ast.AST) -> ast.AST:
    """An expression with others in the place of its names."""

    class Filled(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return given.get(node.id, node)

    found: ast.AST = Filled().visit(expression(form))
    return found


def names_of(function: Function) -> list[str]:
    """The arguments of a function, then the other names that it gives; those never read first."""
    named = [x for x in ast.walk(function) if isinstance(x, ast.Name)]
    read = {x.id for x in named if is_read(x)}
    made = sorted({x.id for x in named if not is_read(x)})
    return sorted(dict.fromkeys((*arguments_of(function), *made)), key=lambda name: name in read)


def arguments_of(function: Function) -> list[str]:
    return [x.arg for x in (*function.args.args, *function.args.kwonlyargs)]


def ingredients(function: Function) -> dict[str, ast.AST]:
    """Copies of the expressions of a function that are more than a name, by their text."""
    parts = [
        part.value if isinstance(part, ast.Assign) else part
        for part in ast.walk(function)
        if isinstance(part, (*INGREDIENTS[1:], ast.Assign)) and not is_stored(part)
    ]
    return {text: expression(text) for text in dict.fromkeys(map(ast.unparse, parts))}


def others_of(part: Any) -> Iterator[ast.AST]:
    """What a part may be instead, made of itself alone."""
    if isinstance(part, ast.BinOp):
        yield from (part.left, part.right)
        for operator in OPERATORS:
            if not isinstance(part.op, operator):
                yield ast.BinOp(part.left, operator(), part.right)
        yield ast.BinOp(part.right, part.op, part.left)
        yield from (ast.BinOp(part, step(), ast.Constant(1)) for step in (ast.Add, ast.Sub))
        if isinstance(part.left, ast.Call) and len(part.left.args) == 1:
            inner = ast.BinOp(part.left.args[0], part.op, part.right)
            yield ast.Call(part.left.func, [inner], part.left.keywords)
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
    if len(part.args) == 1 and isinstance(inner := part.args[0], ast.BinOp):
        yield ast.BinOp(ast.Call(part.func, [inner.left], part.keywords), inner.op, inner.right)
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


def is_place(part: Any) -> bool:
    """Tell whether a part may be what stands in brackets: a number, a slice."""
    return isinstance(part, ast.Slice) or isinstance(getattr(part, "value", None), int)


def is_stored(part: Any) -> bool:
    return isinstance(getattr(part, "ctx", None), ast.Store)


def is_named(part: Any, names: set[str]) -> bool:
    return isinstance(part, ast.Name) and part.id in names


def first_line(statement: ast.stmt) -> str:
    return shown(statement, ast.unparse(statement).splitlines()[0])


def shown(part: ast.AST, text: str = "") -> str:
    """The text of a part, in a line."""
    return shorten(text or ast.unparse(part), 56, placeholder=" ...")


def is_docstring(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
