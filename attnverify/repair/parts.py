"""
What a part of a file may be instead, made of itself alone: another operator, number or function,
one of its own parts, its brackets elsewhere; and the forms that it may grow into.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import Any

OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv)
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
COMPARISONS = (*ORDERS, ast.Eq, ast.NotEq)
ALIKE = (
    *(("repeat", "repeat_interleave", "tile"), ("tril", "triu"), ("exp", "exp2"), ("log", "log2")),
    *(("sum", "mean", "amax"), ("max", "min"), ("maximum", "minimum"), ("amax", "amin")),
    *(("sqrt", "rsqrt"), ("cos", "sin"), ("floor", "ceil"), ("softmax", "log_softmax")),
)
"""Functions that stand for one another where their arguments allow it."""
COLUMNS = ("x[..., None]", "x[:, None]")
GROWN = (
    "0",
    "x ** 0.5",
    "1 / x",
    "-x",
    "~x",
    "1 - x",
    "x + 1",
    "x - 1",
    "x[..., None]",
    "x.swapaxes(-1, -2)",
    "x * (x > 0)",
    "x * 0.6931471805599453",
    "x * 1.4426950408889634",
)
GROWN_BY = ("x * y", "x / y", "x + y", "x - y", "x @ y")
"""What a part may become, alone and with a name."""
LARGEST = {"torch": "x.amax(-1, keepdim=True)", "numpy": "x.max(-1, keepdims=True)"}
"""The largest of each row."""
DEFINED = {
    "torch": ("x.nan_to_num(neginf=0)", "x.nan_to_num()", "x.masked_fill(x == 0, 1)"),
    "numpy": ("np.nan_to_num(x, neginf=0)", "np.nan_to_num(x)", "np.where(x == 0, 1, x)"),
}
"""Numbers with another in the place of what a row without keys leaves."""
HIDDEN = ("c", "~c", "c[..., None]", "~c[..., None]")
FILLS = ("0", "-float('inf')")
"""How a condition may hide numbers, and what then stands there."""
REDUCTIONS = ("max", "min", "amax", "amin", "sum", "mean")


def others_of(part: ast.AST) -> Iterable[ast.AST]:
    others: Iterable[ast.AST] = OTHERS.get(type(part), lambda _: ())(part)
    return others


def other_operations(part: ast.BinOp) -> Iterator[ast.AST]:
    """One of its sides, another operator, other brackets, what is called of both sides."""
    left, right = part.left, part.right
    yield from (left, right)
    for operator in OPERATORS:
        if not isinstance(part.op, operator):
            yield ast.BinOp(left, operator(), right)
    yield ast.BinOp(right, part.op, left)
    yield from (ast.BinOp(part, step(), ast.Constant(1)) for step in (ast.Add, ast.Sub))
    if isinstance(part.op, ast.FloorDiv):
        below = ast.BinOp(ast.UnaryOp(ast.USub(), left), ast.FloorDiv(), right)
        yield ast.UnaryOp(ast.USub(), below)
    if isinstance(left, ast.BinOp):
        yield ast.BinOp(left.left, left.op, ast.BinOp(left.right, part.op, right))
    if isinstance(right, ast.BinOp):
        yield ast.BinOp(ast.BinOp(left, part.op, right.left), right.op, right.right)
    if isinstance(left, ast.Call) and left.args:
        yield with_first(left, ast.BinOp(left.args[0], part.op, right))
    if isinstance(right, ast.Call) and right.args:
        yield with_first(right, ast.BinOp(left, part.op, right.args[0]))


def other_constants(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value - 1, -value, 2 * value, value // 2)
    return (-value, 2 * value, value / 2, 0.0, 1.0) if isinstance(value, float) else ()


def other_calls(part: ast.Call) -> Iterator[ast.AST]:
    """
    A call without itself, or the one before it too, with two arguments exchanged, without one that
    has a name, of a part of its argument alone, of the other of two nested functions first, of a
    function like it.
    """
    if len(part.args) == 1 and not part.keywords:
        yield part.args[0]
    if isinstance(part.func, ast.Attribute):
        yield part.func.value
        if isinstance(of_value := getattr(part.func.value, "func", None), ast.Attribute):
            yield of_value.value
    if part.args and isinstance(inner := part.args[0], ast.BinOp):
        yield ast.BinOp(with_first(part, inner.left), inner.op, inner.right)
    if part.args and isinstance(inner := part.args[0], ast.Call) and inner.args:
        yield with_first(inner, with_first(part, inner.args[0]))
    for turned in exchanged(part.args):
        yield ast.Call(part.func, turned, part.keywords)
    for at in range(len(part.keywords)):
        yield ast.Call(part.func, part.args, part.keywords[:at] + part.keywords[at + 1 :])
    if isinstance(function := part.func, ast.Attribute):
        for name in dict.fromkeys(x for own in ALIKE if function.attr in own for x in own):
            if name != function.attr:
                renamed = ast.Attribute(function.value, name, ast.Load())
                yield ast.Call(renamed, part.args, part.keywords)


def other_comparisons(part: ast.Compare) -> Iterator[ast.AST]:
    own = part.ops[0]
    for comparison in ORDERS if isinstance(own, ORDERS) else COMPARISONS:
        if len(part.ops) == 1:
            yield ast.Compare(part.left, [comparison()], part.comparators)


def other_orders(part: ast.Tuple) -> Iterator[ast.AST]:
    return (ast.Tuple(turned, part.ctx) for turned in exchanged(part.elts) if not is_stored(part))


OTHERS: dict[type, Callable[[Any], Iterable[ast.AST]]] = {
    ast.BinOp: other_operations,
    ast.Constant: lambda part: map(ast.Constant, other_constants(part.value)),
    ast.Compare: other_comparisons,
    ast.UnaryOp: lambda part: [part.operand],
    ast.IfExp: lambda part: [part.body, part.orelse],
    ast.BoolOp: lambda part: part.values,
    ast.Subscript: lambda part: [part.value] if isinstance(part.ctx, ast.Load) else [],
    ast.Tuple: other_orders,
    ast.Call: other_calls,
}


def with_first(call: ast.Call, argument: ast.expr) -> ast.Call:
    return ast.Call(call.func, [argument, *call.args[1:]], call.keywords)


def exchanged(parts: list[ast.expr]) -> Iterator[list[ast.expr]]:
    """These with two neighbours exchanged."""
    for at in range(len(parts) - 1):
        yield [*parts[:at], parts[at + 1], parts[at], *parts[at + 2 :]]


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


def is_docstring(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def expression(text: str) -> Any:
    return ast.parse(text, mode="eval").body


def filled(form: str, **given: ast.AST) -> ast.AST:
    """An expression with others in the place of its names."""

    class Filled(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return given.get(node.id, node)

    found: ast.AST = Filled().visit(expression(form))
    return found
