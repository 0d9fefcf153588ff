"""
Changes that no single sign or name makes: what kernels do to a line. A step stored in half
precision, a sum over whole tiles alone, another activation, a part that is overwritten before it is
read, the statements of a loop in another order.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

Change = tuple[ast.AST, ast.AST]
"""A part of the source, and what stands in its place."""

TILES = (4, 8, 16, 32, 64, 128)
HALVES = ("float16", "bfloat16")
ACTIVATIONS = ("relu", "gelu", "silu", "sigmoid", "tanh", "softplus")
TRANSCENDENTAL = ("exp", "tanh", "erf", "sigmoid", "log1p", "expm1", "maximum")
FEW_STATEMENTS = 3


def slips_of(node: ast.AST) -> Iterator[Change]:
    """Yield what a kernel may do to a part of a line."""
    if isinstance(node, ast.BinOp | ast.Call) and not _is_whole_number(node):
        yield from ((node, _called(f"_{half}", node)) for half in HALVES)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        for tile in TILES:
            yield node, with_(node, left=_called(f"_tiles_of_{tile}", node.left))
    if isinstance(node, ast.BinOp) and (name := activated(node)):
        yield from (
            (node, _called(f"_{other}", ast.Name(name, ast.Load()))) for other in ACTIVATIONS
        )
    if isinstance(node, ast.List | ast.Tuple) and len(node.elts) == 2:
        yield from _overwritten(node)
    if isinstance(node, ast.For) and 1 < len(node.body) <= FEW_STATEMENTS:
        for order in [*permutations(node.body)][1:]:
            told = "; ".join(ast.unparse(each) for each in order)
            yield node, with_(node, body=[*order], told=f"the loop's order as `{told}`")
    if isinstance(node, ast.Call) and name_of(node) == "cumsum":
        yield from ((node, with_(node, func=_named(f"_running_{half}"))) for half in HALVES)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _is_name(node.right):
        yield node, with_(node, right=ast.BinOp(node.right, ast.Sub(), ast.Constant(1)))
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
        joined = ast.BitAnd() if isinstance(node.ops[0], ast.NotEq) else ast.BitOr()
        yield node, ast.BinOp(node, joined, with_(node, comparators=[ast.Constant(0)]))


def sentinels_of(node: ast.AST, function: ast.FunctionDef) -> Iterator[Change]:
    """Yield minus a number among the arguments in place of minus infinity."""
    if isinstance(node, ast.UnaryOp) and ast.unparse(node.operand) in ("np.inf", "float('inf')"):
        defaults = function.args.defaults
        for given, usual in zip(function.args.args[-len(defaults) :], defaults, strict=False):
            if isinstance(getattr(usual, "value", None), float):
                yield node, with_(node, operand=ast.Name(given.arg, ast.Load()))


def tiles_of_sum(node: ast.Call, value: ast.expr) -> Iterator[Change]:
    """Yield a sum, or a mean, of whole tiles along its axis."""
    axes = [keyword.value for keyword in node.keywords if keyword.arg in ("axis", "dim")]
    is_method = isinstance(node.func, ast.Attribute) and node.func.value is value
    for tile in TILES if axes else ():
        cut = _called(f"_tiles_of_{tile}", value, *axes)
        if is_method:
            yield node, with_(node, func=with_(node.func, value=cut))
        else:
            yield node, with_(node, args=[cut, *node.args[1:]])


def activated(node: ast.AST) -> str:
    """Name what an expression is an activation of: a function of one name through exp or tanh."""
    parts = [*ast.walk(node)]
    modules = {id(part.value) for part in parts if isinstance(part, ast.Attribute)}
    names = {part.id for part in parts if isinstance(part, ast.Name) and id(part) not in modules}
    called = {name_of(part) for part in parts if isinstance(part, ast.Call)}
    return names.pop() if len(names) == 1 and called.intersection(TRANSCENDENTAL) else ""


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _overwritten(node: Any) -> Iterator[Change]:
    """Yield the second of two parts, read from where the first was stored."""
    first, second = node.elts
    shared = {x.id for x in ast.walk(first) if isinstance(x, ast.Name)}
    for name in sorted(shared & {x.id for x in ast.walk(second) if isinstance(x, ast.Name)}):
        yield second, _Read(name, first).visit(copy.deepcopy(second))


class _Read(ast.NodeTransformer):
    """Reads another expression wherever a name is read."""

    def __init__(self, name: str, other: ast.AST) -> None:
        self.name, self.other = name, other

    def visit_Name(self, node: ast.Name) -> Any:
        return copy.deepcopy(self.other) if node.id == self.name else node


def equal_numbers(function: ast.AST) -> Iterator[tuple[Any, ast.stmt]]:
    """Yield a fraction that one statement has several times, and the statement."""
    for statement in ast.walk(function):
        if isinstance(statement, ast.Assign | ast.Return):
            parts = [x for x in ast.walk(statement) if isinstance(x, ast.Constant)]
            values = [x.value for x in parts]
            for part in parts:
                again = isinstance(part.value, float) and values.count(part.value) > 1
                if again and part is parts[values.index(part.value)]:
                    yield part, statement


def with_number(statement: ast.stmt, own: Any) -> Callable[[float], ast.AST]:
    """Return the statement with another number wherever its own stands."""

    def made(number: float) -> ast.AST:
        changed = copy.deepcopy(statement)
        for part in ast.walk(changed):
            if isinstance(part, ast.Constant) and part.value == own:
                part.value = number
        return changed

    return made


def _is_whole_number(node: ast.AST) -> bool:
    """Tell whether nothing is stored there that could be rounded: sizes, places, comparisons."""
    return isinstance(node, ast.Call) and name_of(node) in ("arange", "split", "repeat", "zeros")


def name_of(node: ast.Call) -> str:
    """Name the function that is called, without its module."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _called(helper: str, *arguments: Any) -> ast.Call:
    return ast.Call(_named(helper), list(arguments), [])


def _named(helper: str) -> ast.Name:
    return ast.Name(helper, ast.Load())


def with_(node: Any, **fields: Any) -> Any:
    """Copy a node with other fields."""
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made
