"""The mutants of a source file: every place where one small change leaves a program."""

import ast
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes from `start` to `end` of a file, as they are and as they become."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        assert source[self.start : self.end].decode() == self.before
        return source[: self.start] + self.after.encode() + source[self.end :]

    @property
    def name(self) -> str:
        """What tells it from every other: the place, and the change."""
        return f"{self.path}:{self.line}:{self.start} {self.before} -> {self.after}"


OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
NAMES = {"maximum": "minimum", "fmax": "fmin", "max": "min", "all": "any", "ones": "zeros"}
NAMES |= {"logical_and": "logical_or", "triu": "tril", "sin": "cos", "exp": "expm1", "log": "log1p"}
NAMES |= {other: name for name, other in NAMES.items()}


def changed_operator(node: Any) -> Iterator[ast.AST]:
    if type(node.op) in OPERATORS:
        yield replaced(node, op=OPERATORS[type(node.op)]())


def changed_comparison(node: ast.Compare) -> Iterator[ast.AST]:
    for place, op in enumerate(node.ops):
        if type(op) in OPERATORS:
            ops = [*node.ops[:place], OPERATORS[type(op)](), *node.ops[place + 1 :]]
            yield replaced(node, ops=ops)


def changed_constant(node: ast.Constant) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield replaced(node, value=not value)
    elif isinstance(value, int):
        yield replaced(node, value=value + 1)
    elif isinstance(value, float):
        yield replaced(node, value=2 * value or 1.0)


def changed_name(node: ast.Call) -> Iterator[ast.AST]:
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr in NAMES:
        yield replaced(node, func=replaced(function, attr=NAMES[function.attr]))
    elif isinstance(function, ast.Name) and function.id in NAMES:
        yield replaced(node, func=replaced(function, id=NAMES[function.id]))


def without_sign(node: ast.UnaryOp) -> Iterator[ast.AST]:
    if not (isinstance(node.op, ast.USub) and is_of(node.operand, "inf")):
        yield node.operand


def is_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name


def swapped_branches(node: ast.IfExp) -> Iterator[ast.AST]:
    yield replaced(node, body=node.orelse, orelse=node.body)


def left_out(node: ast.Expr | ast.Raise) -> Iterator[ast.AST]:
    """A statement that is not there; a docstring stays."""
    if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call):
        yield ast.Pass()


def other_assignment(node: ast.AugAssign) -> Iterator[ast.AST]:
    yield from changed_operator(node)
    yield ast.Pass()


CHANGES: dict[type, Callable[[Any], Iterator[ast.AST]]] = {
    ast.BinOp: changed_operator,
    ast.BoolOp: changed_operator,
    ast.Compare: changed_comparison,
    ast.Constant: changed_constant,
    ast.Call: changed_name,
    ast.UnaryOp: without_sign,
    ast.IfExp: swapped_branches,
    ast.Expr: left_out,
    ast.Raise: left_out,
    ast.AugAssign: other_assignment,
}


def replaced(node: Any, **fields: Any) -> Any:
    other = copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def find_mutants(path: str, source: bytes) -> list[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in walk(ast.parse(source)):
        for other in CHANGES[type(node)](node) if type(node) in CHANGES else ():
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            text = ast.unparse(ast.fix_missing_locations(other))
            text = f"({text})" if isinstance(other, ast.expr) else text
            found.append(Mutant(path, node.lineno, start, end, source[start:end].decode(), text))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.after))


def walk(node: ast.AST) -> Iterator[Any]:
    """The nodes that compute something: no annotation, no message of an error, no text."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not is_words(node, child):
                yield from walk(child)


def is_words(parent: ast.AST, child: ast.AST) -> bool:
    """Whether a node only says something: a string, the error that is raised, a type's name."""
    return (
        isinstance(child, ast.JoinedStr)
        or isinstance(parent, ast.Raise)
        or (isinstance(parent, ast.Assign) and is_type(parent.value))
    )


def is_type(node: ast.AST) -> bool:
    """Whether the value of an assignment is a type: ``Callable[...]``, ``A | None``."""
    return isinstance(node, ast.Subscript | ast.BinOp) and any(
        isinstance(part, ast.Name) and part.id in ("Callable", "tuple", "dict", "list", "ndarray")
        for part in ast.walk(node)
    )
