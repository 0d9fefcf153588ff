"""
Changes that no single sign or name makes: what kernels do to a line. A step stored in half
precision, a sum over whole tiles alone, another activation, a part that is overwritten before it is
read, the statements of a loop in another order, a term that is added in every tile.
"""

import ast
import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import permutations
from typing import Any

Change = tuple[ast.AST, ast.AST]
"""A part of the source, and what stands in its place."""

Rows = tuple[tuple[Iterable[Any], Callable[[Any], Iterable[Any]]], ...]
"""Kinds of nodes, of operators or names of calls, and what may stand in place of one of them."""

TILES = (4, 8, 16, 32, 64, 128)
TILED = [f"_tiles_of_{tile}{shorter}" for shorter in ("", "_or_less") for tile in TILES]
"""Of an axis shorter than a tile, nothing is read, or all of it."""
HALVES = ("float16", "bfloat16")
ACTIVATIONS = ("relu", "gelu", "silu", "sigmoid", "tanh", "softplus")
TRANSCENDENTAL = ("exp", "tanh", "erf", "sigmoid", "log1p", "expm1", "maximum")
FEW_STATEMENTS = 3


def others_of(node: Any, rows: Rows) -> Iterator[Change]:
    """Yield what stands in place of a node by the rows of its kind, its operator or its name."""
    own: set[Any] = {type(node)} if isinstance(node, ast.expr | ast.stmt) else set()
    if isinstance(node, ast.BinOp | ast.UnaryOp):
        own.add(type(node.op))
    if isinstance(node, ast.Call):
        own.add(name_of(node))
    for kinds, others in rows:
        if not own.isdisjoint(kinds):
            yield from ((node, other) for other in others(node))


def off_by_one(node: ast.AST) -> Iterator[Change]:
    """Yield places of an axis, and what counts them, one more and one less."""
    for place in _places_of(node):
        if not isinstance(place, ast.Constant | ast.Slice | ast.UnaryOp):
            for operator in (ast.Add(), ast.Sub()):
                yield place, ast.BinOp(place, operator, ast.Constant(1))


def _places_of(node: ast.AST) -> list[Any]:
    """List what stands for a whole number: in brackets, in a range, in front of a modulus."""
    if isinstance(node, ast.Subscript):
        own = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        slices = [x for x in own if isinstance(x, ast.Slice)]
        return [*own, *(end for x in slices for end in (x.lower, x.upper) if end)]
    if isinstance(node, ast.Call) and (
        name_of(node) in ("range", "arange", "divmod")
        or (isinstance(node.func, ast.Name) and node.func.id in ("max", "min"))
    ):
        return node.args
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.FloorDiv):
        return [node.left]
    return []


def _in_each_tile(node: ast.BinOp, total: Any, term: ast.expr) -> Iterator[ast.AST]:
    """Yield a term that is added to a sum, or to a product, as often as this has tiles."""
    if isinstance(total, ast.BinOp) and isinstance(total.op, ast.MatMult):
        of = [total.left]
    elif isinstance(total, ast.Call) and name_of(total) == "sum":
        of = [argument_of(total), *axes_of(total)]
    else:
        return
    for tile in TILES:
        told = f"`{ast.unparse(term)}` added in each tile of {tile}"
        each = called(f"_each_tile_of_{tile}", term, *of)
        yield with_(node, left=total, right=each, told=told)


def _by_column(node: ast.BinOp) -> Iterator[ast.AST]:
    if is_column(node.right):
        name = getattr(node.right, "value", node.right)
        told = f"`{ast.unparse(name)}` read by column in place of row"
        yield with_(node, right=called("_by_column", name, node.left), told=told)


def is_column(node: Any) -> bool:
    """Tell whether it is a row that was made a column, as ``scale[:, None]``."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return False
    *_, first, last = node.slice.elts
    return isinstance(first, ast.Slice) and getattr(last, "value", 0) is None


def _centred(node: ast.Call) -> Iterator[ast.AST]:
    """Yield zeros in front that stand half in front and half behind."""
    parts = getattr(node.args[0], "elts", [])
    if len(parts) == 2 and isinstance(parts[0], ast.Call) and name_of(parts[0]) == "zeros":
        told = f"the padding of `{ast.unparse(node)}` half in front and half behind"
        yield with_(node, func=named("_half_behind"), told=told)


def _in_another_order(loop: ast.For) -> Iterator[ast.AST]:
    for order in [*permutations(loop.body)][1:] if len(loop.body) <= FEW_STATEMENTS else ():
        told = "; ".join(ast.unparse(each) for each in order)
        yield with_(loop, body=[*order], told=f"the loop's order as `{told}`")


def _compared_otherwise(node: ast.Compare) -> Iterator[ast.AST]:
    """Yield an equality that zeros meet, or do not, and an order of whole tiles."""
    right = node.comparators[0]
    if isinstance(node.ops[0], ast.Eq | ast.NotEq):
        joined = ast.BitAnd() if isinstance(node.ops[0], ast.NotEq) else ast.BitOr()
        yield ast.BinOp(node, joined, with_(node, comparators=[ast.Constant(0)]))
    elif not isinstance(right, ast.Constant):
        for tile in map(ast.Constant, TILES):
            left, by_tiles = (ast.BinOp(x, ast.FloorDiv(), tile) for x in (node.left, right))
            yield with_(node, left=left, comparators=[by_tiles])


def sentinels_of(node: ast.AST, function: ast.FunctionDef) -> Iterator[Change]:
    """Yield minus a number among the arguments in place of minus infinity."""
    if isinstance(node, ast.UnaryOp) and ast.unparse(node.operand) in ("np.inf", "float('inf')"):
        defaults = function.args.defaults
        for given, usual in zip(function.args.args[-len(defaults) :], defaults, strict=False):
            if isinstance(getattr(usual, "value", None), float):
                yield node, with_(node, operand=ast.Name(given.arg, ast.Load()))


def other_sums(node: ast.Call) -> Iterator[ast.AST]:
    """Yield a sum, or a mean, of whole tiles along its axis, and magnitudes for squares."""
    value, axes = argument_of(node), axes_of(node)
    for tiles in TILED if axes else ():
        yield of_another(node, called(tiles, value, *axes))
    if isinstance(value, ast.BinOp) and ast.unparse(value) in (
        f"{(own := ast.unparse(value.left))} * {own}",
        f"{own} ** 2",
    ):
        size = ast.Call(ast.Attribute(named("np"), "abs", ast.Load()), [value.left], [])
        yield ast.BinOp(of_another(node, size), ast.Pow(), ast.Constant(2))


def argument_of(node: Any) -> Any:
    """Return what a function of NumPy, or a method, is called of."""
    owner = getattr(node.func, "value", None)
    is_module = owner is None or getattr(owner, "id", "") in ("np", "numpy", "torch")
    return node.args[0] if is_module else owner


def of_another(node: Any, value: ast.expr) -> ast.Call:
    """Return the same call of something else."""
    if argument_of(node) is getattr(node.func, "value", None):
        return with_(node, func=with_(node.func, value=value))
    return with_(node, args=[value, *node.args[1:]])


def helped(node: Any, helper: str) -> Any:
    """Call a stand-in in its place."""
    value = argument_of(node)
    rest = node.args if value is getattr(node.func, "value", None) else node.args[1:]
    return with_(node, func=named(helper), args=[value, *rest])


def axes_of(node: ast.Call) -> list[ast.expr]:
    return [keyword.value for keyword in node.keywords if keyword.arg in ("axis", "dim")]


def activated(node: ast.AST) -> set[str]:
    """Name what an expression is an activation of: a function of one name through exp or tanh."""
    parts = [*ast.walk(node)]
    modules = {id(part.value) for part in parts if isinstance(part, ast.Attribute)}
    names = {part.id for part in parts if isinstance(part, ast.Name) and id(part) not in modules}
    called = {name_of(part) for part in parts if isinstance(part, ast.Call)}
    return names if len(names) == 1 and called.intersection(TRANSCENDENTAL) else set()


def overwritten(node: ast.AST) -> Iterator[Change]:
    """Yield the second of two parts, read from where the first was stored."""
    if not isinstance(node, ast.List | ast.Tuple) or len(node.elts) != 2:
        return
    first, second = node.elts
    shared = {x.id for x in ast.walk(first) if isinstance(x, ast.Name)}
    for name in sorted(shared & {x.id for x in ast.walk(second) if isinstance(x, ast.Name)}):
        yield second, Read(name, first).visit(copy.deepcopy(second))


class Read(ast.NodeTransformer):
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


SLIPS: Rows = (
    (
        (ast.BinOp, ast.Call),
        lambda node: [called(f"_{half}", node) for half in HALVES if not _is_whole_number(node)],
    ),
    (
        (ast.MatMult,),
        lambda node: (with_(node, left=called(tiles, node.left)) for tiles in TILED),
    ),
    ((ast.Add,), lambda node: _in_each_tile(node, node.left, node.right)),
    ((ast.Add,), lambda node: _in_each_tile(node, node.right, node.left)),
    ((ast.BinOp,), _by_column),
    (("concatenate",), _centred),
    (
        (ast.BinOp,),
        lambda node: [
            called(f"_{other}", named(name)) for name in activated(node) for other in ACTIVATIONS
        ],
    ),
    ((ast.For,), _in_another_order),
    (
        ("cumsum",),
        lambda node: [with_(node, func=named(f"_running_{half}")) for half in HALVES],
    ),
    (
        (ast.Div,),
        lambda node: [
            with_(node, right=ast.BinOp(divisor, ast.Sub(), ast.Constant(1)))
            for divisor in [node.right]
            if isinstance(divisor, ast.Name)
        ],
    ),
    ((ast.Compare,), _compared_otherwise),
)
"""What a kernel may do to a part of a line."""


def _is_whole_number(node: ast.AST) -> bool:
    """Tell whether nothing is stored there that could be rounded: sizes, places, comparisons."""
    return isinstance(node, ast.Call) and name_of(node) in ("arange", "split", "repeat", "zeros")


def name_of(node: ast.Call) -> str:
    """Name the function that is called, without its module."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def called(helper: str, *arguments: Any) -> ast.Call:
    return ast.Call(named(helper), list(arguments), [])


def named(helper: str) -> ast.Name:
    return ast.Name(helper, ast.Load())


def with_(node: Any, **fields: Any) -> Any:
    """Copy a node with other fields."""
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


SUMS, PRODUCTS = (ast.Add, ast.Sub), (ast.Mult, ast.Div, ast.MatMult)
LOOSER = ((SUMS, PRODUCTS), ((ast.BitOr,), (ast.BitAnd,)))
"""Operators that want brackets within others."""


def without_brackets(node: ast.AST) -> Iterator[Change]:
    """Yield a part of an expression in brackets that escapes what stands around these."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        for inner in (x for x in node.values if isinstance(x, ast.BoolOp)):
            others = [x for x in node.values if x is not inner]
            for part in inner.values:
                rest = [x for x in inner.values if x is not part]
                kept = with_(inner, values=rest) if len(rest) > 1 else rest[0]
                yield node, ast.BoolOp(ast.Or(), [part, with_(node, values=[kept, *others])])
    if not isinstance(node, ast.BinOp):
        return
    for side in ("left", "right"):
        inner = getattr(node, side)
        if isinstance(inner, ast.BinOp) and any(
            isinstance(inner.op, loose) and isinstance(node.op, tight) for loose, tight in LOOSER
        ):
            yield node, with_(inner, left=with_(node, **{side: inner.left}))
            yield node, with_(inner, right=with_(node, **{side: inner.right}))


def counted_from_elsewhere(node: ast.AST) -> Iterator[Change]:
    """Yield what counts from 0 as what counts from 1, and from -1."""
    if isinstance(node, ast.Call) and name_of(node) == "arange" and len(node.args) == 1:
        for operator in (ast.Add, ast.Sub):
            yield node, ast.BinOp(node, operator(), ast.Constant(1))
