"""
Mutants: a specification with one thing changed, in the words of its own line. A kernel that equals
one of them is told what it computes instead: "equals the specification with `j > i - window` as
`j >= i - window`, my_spec.py:14". Beside them, the specification of an argument that is read in
another way: centred, moved by one, its halves interleaved.
"""

import ast
import copy
import inspect
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnverify.catalogue.outside import Mutant, Number
from attnverify.specified.mutants.alike import changes_alike
from attnverify.specified.mutants.gradients import changed_gradients
from attnverify.specified.mutants.misread import misread, numbers_of_arguments
from attnverify.specified.mutants.slips import (
    HALVES,
    SLIPS,
    Change,
    Rows,
    counted_from_elsewhere,
    equal_numbers,
    helped,
    name_of,
    named,
    off_by_one,
    other_sums,
    others_of,
    overwritten,
    sentinels_of,
    with_,
    with_number,
    without_brackets,
)
from attnverify.specified.mutants.stand_ins import STAND_INS, WORDS
from attnverify.specified.mutants.steps import changed_steps, without_maxima
from attnverify.specified.mutants.whole import misread_whole

if TYPE_CHECKING:
    from attnverify.specified.operation import SpecifiedOperation

BOUNDARIES: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}
OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.Add),
    ast.Div: (ast.Mult,),
}
ABS = partial(ast.Call, ast.parse("np.abs", mode="eval").body)
APPROXIMATELY = ast.keyword("approximate", ast.Constant("tanh"))
UNARY_CALLS: tuple[str, ...] = ("sqrt", "exp", "tanh", "log", "abs", "square", "maximum", "minimum")
SLOPED = ("exp", "tanh", "cos", "sin", "erf", "sigmoid")
"""Functions whose argument may have another factor: a temperature, a base."""
UNARY_CALLS += ("rsqrt", "relu", "gelu", "silu", "sigmoid")
RENAMED = {"cos": "sin", "sin": "cos", "maximum": "minimum", "minimum": "maximum"}
RENAMED |= {"exp": "exp2", "log": "log2"}
RENAMED |= {"mean": "sum", "sum": "mean", "max": "min", "var": "std", "amax": "amin"}

COUNTED = {"mean": "_mean_but_one", "sum": "_count_all"}
"""What may stand for a reduction that counts."""


@lru_cache(maxsize=64)
def mutants_of(operation: "SpecifiedOperation") -> tuple[Mutant, ...]:
    """List the mutants of an operation; of a gradient, the gradients of the mutants."""
    return tuple(_mutants(operation))


def _mutants(operation: "SpecifiedOperation") -> Iterator[Mutant]:
    if (source := read_source(operation.own)) is None:
        return
    for old, new in changes(source.function):
        words = describe(old, new, source.place(old))
        yield (
            words,
            _answer_of(operation, source, old, new),
            1 + is_renamed(old, new) + 2 * is_rounded(new),
        )
    yield from misread(operation)
    yield from misread_whole(operation)
    yield from changed_gradients(operation)
    yield from without_maxima(operation)
    if operation.form.itself is not None:  # what a line of PyTorch calls, it does not spell
        yield from changed_steps(operation)


@dataclass(frozen=True)
class Source:
    """A function's own text, parsed: the file it is of, and the line it begins at."""

    tree: ast.Module
    file: str
    first: int

    @property
    def function(self) -> ast.FunctionDef:
        own = self.tree.body[0]
        assert isinstance(own, ast.FunctionDef)
        return own

    @cached_property
    def parents(self) -> dict[int, tuple[ast.AST, str]]:
        """Whose part a node is, and which, by the node's identity."""
        return {
            id(node): (parent, field)
            for parent in ast.walk(self.tree)
            for field, own in ast.iter_fields(parent)
            for node in (own if isinstance(own, list) else [own])
        }

    def statement(self, node: ast.AST) -> ast.AST:
        """The statement that a node stands in."""
        while not isinstance(node, ast.stmt) and id(node) in self.parents:
            node, _ = self.parents[id(node)]
        return node

    def place(self, node: ast.AST) -> str:
        """Write ``my_spec.py:14``."""
        return f"{self.file}:{self.first + int(getattr(node, 'lineno', 1)) - 1}"


def read_source(function: Callable[..., Any], file: str = "") -> Source | None:
    """
    Read a function in its file, or in what this is called; None for one made at a prompt, which has
    no source.
    """
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError):
        return None
    own = tree.body[0]
    if not isinstance(own, ast.FunctionDef):
        return None
    own.decorator_list, own.returns = [], None
    for node in ast.walk(own.args):
        if isinstance(node, ast.arg):
            node.annotation = None
    return Source(tree, file or Path(function.__code__.co_filename).name, first)


def numbers_of_source(operation: "SpecifiedOperation") -> Iterator[Number]:
    """
    List the numbers that a specification's lines spell, and the factor 1 that they do not spell in
    front of what a function of one argument is taken of.
    """
    yield from numbers_of_arguments(operation)
    if (source := read_source(operation.own)) is None:
        return
    for part, statement in equal_numbers(source.function):
        words, own, _ = _number(operation, source, part, part.value, ast.Constant)
        changed = with_number(statement, own)
        yield words, own, partial(_changed, operation, source, statement, changed)
    for node in ast.walk(source.function):
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            yield _number(operation, source, node, node.value, ast.Constant)
        elif isinstance(node, ast.Call) and name_of(node) in SLOPED and len(node.args) == 1:
            yield _number(operation, source, node, 1.0, partial(_sloped, node))


def _sloped(node: ast.Call, number: float) -> ast.AST:
    product = ast.BinOp(ast.Constant(number), ast.Mult(), node.args[0])
    return with_(node, args=[product])


def _number(
    operation: "SpecifiedOperation",
    source: Source,
    node: ast.AST,
    own: float,
    other: Callable[[float], ast.AST],
) -> Number:
    return (
        lambda number: describe(node, other(_rounded(number)), source.place(node)),
        own,
        partial(_changed, operation, source, node, other),
    )


def _changed(
    operation: "SpecifiedOperation",
    source: Source,
    node: ast.AST,
    other: Callable[[float], ast.AST],
    number: float,
) -> Callable[[dict[str, Any]], Any]:
    return _answer_of(operation, source, node, other(number))


def _rounded(number: float) -> float:
    return float(f"{number:g}")


def describe(old: ast.AST, new: ast.AST, where: str) -> str:
    """Say what was changed, in the source's own words."""
    if told := getattr(new, "told", ""):
        return f"{told}, {where}"
    own, other = short_apart(_spelled(old), _spelled(new))
    return f"`{own}` as `{other}`, {where}"


def short_apart(*texts: str) -> list[str]:
    """Shorten two texts, so that where they first differ is still there."""
    differ = (k for k, (a, b) in enumerate(zip(*texts, strict=False)) if a != b)
    at = next(differ, min(map(len, texts)))
    return [_short(text, at) for text in texts]


def _spelled(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    for name, words in WORDS.items():
        text = text.replace(name, words)
    return text


def is_renamed(old: ast.AST, new: ast.AST) -> bool:
    """Tell whether a number stands there, or a name that is no part of what stood there."""
    is_part = isinstance(new, ast.Name) and any(new is x for x in ast.walk(old))
    return isinstance(new, ast.Name | ast.Constant) and not is_part


def is_rounded(node: ast.AST) -> bool:
    """Tell whether a number beside a tie may round to the other side in it."""
    return isinstance(node, ast.Call) and name_of(node).endswith(HALVES)


def _short(text: str, at: int) -> str:
    """Shorten a text, so that what stands at a place is still there."""
    if len(text) <= 60:
        return text
    if at < 28 or at >= len(text) - 28:
        return f"{text[:28]} ... {text[-28:]}"
    return f"... {text[at - 14 : at + 42]}{' ...' * (at + 42 < len(text))}"


def changes(function: ast.AST) -> Iterator[Change]:
    """Yield every single change of a function's body, defaults included."""
    assert isinstance(function, ast.FunctionDef)
    known = _names_of(function)
    yield from changes_alike(function)
    parts = [*_parts(function)]
    around = {id(x): node for node in parts if isinstance(node, ast.BinOp) for x in _sides(node)}
    for node in parts:
        for old, new in others_of(node, CHANGES):
            yield _with_sides(around.get(id(old)), old, new)
        yield from others_of(node, SLIPS)
        yield from overwritten(node)
        yield from off_by_one(node)
        yield from without_brackets(node)
        yield from counted_from_elsewhere(node)
        yield from sentinels_of(node, function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in known:
            yield from ((node, ast.Name(other, ast.Load())) for other in known if other != node.id)
        if isinstance(node, ast.Assign):
            yield from _all_tiled(node)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.BinOp | ast.Call):
            yield from ((node.value, _sum(named(name), node.value)) for name in known)


def _sum(one: ast.expr, other: ast.expr) -> ast.BinOp:
    return ast.BinOp(one, ast.Add(), other)


def _sides(node: ast.BinOp) -> tuple[ast.expr, ast.expr]:
    return node.left, node.right


def _with_sides(around: ast.BinOp | None, old: Any, new: Any) -> Change:
    """Tell a small number by the operator that it stands at: a line has several."""
    if around is None or not isinstance(old, ast.Constant) or isinstance(old.value, float):
        return old, new
    return around, with_(around, **{"left" if around.left is old else "right": new})


def _names_of(function: ast.FunctionDef) -> list[str]:
    """List the function's own names, of arguments and of what it assigns, in their order."""
    given = [argument.arg for argument in function.args.args]
    walked = [node for statement in function.body for node in ast.walk(statement)]
    stored = [n.id for n in walked if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return list(dict.fromkeys([*given, *stored]))


def _all_tiled(statement: ast.Assign) -> Iterator[Change]:
    """Repeat the whole axis in place of each element wherever a statement repeats."""
    calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call) and name_of(n) == "repeat"]
    if len(calls) > 1:
        changed = copy.deepcopy(statement)
        for node in ast.walk(changed):
            if isinstance(node, ast.Call) and name_of(node) == "repeat":
                node.func = ast.Name("_tiled", ast.Load())
        yield statement, changed


def _parts(function: ast.FunctionDef) -> Iterator[ast.AST]:
    body = [node for statement in function.body for node in ast.walk(statement)]
    yield from (node for node in body if not _is_docstring(node))
    yield from (node for node in function.args.defaults if isinstance(node, ast.Constant))


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value


def _other_operators(node: Any) -> list[ast.AST]:
    return [with_(node, op=other()) for other in OPERATORS.get(type(node.op), ())]


def _of_comparison(node: ast.Compare) -> Iterator[ast.AST]:
    for other in BOUNDARIES.get(type(node.ops[0]), ()):
        yield with_(node, ops=[other(), *node.ops[1:]])
    right = node.comparators[0]
    for operator in (ast.Add, ast.Sub):
        moved = ast.BinOp(right, operator(), ast.Constant(1))
        yield with_(node, comparators=[moved, *node.comparators[1:]])


def _of_condition(node: ast.BoolOp) -> Iterator[ast.AST]:
    """Yield *or* for *and*, and each part left out."""
    yield with_(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    for part in node.values:
        rest = [other for other in node.values if other is not part]
        yield with_(node, values=rest) if len(rest) > 1 else rest[0]


def _with_two(node: ast.expr, operator: ast.operator) -> ast.BinOp:
    return ast.BinOp(node, operator, ast.Constant(2))


def _roots_apart(node: ast.Call) -> Iterator[ast.AST]:
    """Yield the first term, or factor, under a root of its own and the second outside."""
    for inner in node.args[:1]:
        if isinstance(inner, ast.BinOp):
            yield with_(inner, left=with_(node, args=[inner.left]))


def _joined_backwards(node: ast.Call) -> Iterator[ast.AST]:
    for parts in node.args[:1]:
        if isinstance(parts, ast.List | ast.Tuple):
            backwards = with_(parts, elts=parts.elts[::-1])
            yield with_(node, args=[backwards, *node.args[1:]])


def _over_other_axes(node: ast.Call) -> Iterator[ast.AST]:
    for place, keyword in enumerate(node.keywords):
        axes = set()
        if keyword.arg in ("axis", "dim"):
            with suppress(ValueError):
                axes = {0, -1, -2, 1} - {ast.literal_eval(keyword.value)}
        for other in axes:
            changed = ast.keyword(keyword.arg, ast.Constant(other))
            keywords = [*node.keywords[:place], changed, *node.keywords[place + 1 :]]
            yield with_(node, keywords=keywords)


def _other_numbers(node: ast.Constant) -> list[ast.AST]:
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return []
    others = [value + 1, value - 1] if isinstance(value, int) else [0.0, value * 2, value / 2]
    return [ast.Constant(other) for other in (*others, -value)]


def _renamed(node: ast.Call) -> list[ast.AST]:
    function, name = node.func, RENAMED[name_of(node)]
    changed = with_(function, attr=name) if isinstance(function, ast.Attribute) else ast.Name(name)
    return [with_(node, func=changed)]


BITS, SIGNS = (ast.BitAnd, ast.BitOr), (ast.Add, ast.Sub)
NO_BITS = [kind for kind in ast.operator.__subclasses__() if kind not in BITS]
CHANGES: Rows = (
    ((ast.Compare,), _of_comparison),
    ((ast.BoolOp,), _of_condition),
    (
        (ast.AugAssign,),
        lambda node: [
            ast.copy_location(ast.Assign([node.target], node.value), node),
            *_other_operators(node),
        ],
    ),
    ((ast.USub,), lambda node: [node.operand, with_(node, operand=ABS([node.operand], []))]),
    (BITS, lambda node: [node.left, node.right]),
    (
        (ast.Pow,),
        lambda node: [
            with_(node, right=_with_two(node.right, half_or_twice))
            for half_or_twice in (ast.Div(), ast.Mult())
            if not isinstance(node.right, ast.Constant)
        ],
    ),
    (NO_BITS, _other_operators),
    (NO_BITS, lambda node: node.left.args[:1] if isinstance(node.left, ast.Call) else ()),
    (OPERATORS, lambda node: [node.left]),  # the term, or the factor, left out
    ((*SIGNS, ast.Mult), lambda node: [node.right]),
    (
        SIGNS,
        lambda node: [
            with_(node, right=ast.BinOp(ast.Constant(2), ast.Mult(), node.right)),
            with_(node, left=ast.UnaryOp(ast.USub(), node.left)),
        ],
    ),
    ((ast.Div,), lambda node: [with_(node, left=ast.Constant(1))]),
    ((ast.Mult, ast.Div), lambda node: [with_(node, right=_with_two(node.right, ast.Pow()))]),
    (UNARY_CALLS, lambda node: node.args[:1]),
    (("sqrt",), _roots_apart),
    (("maximum", "minimum"), lambda node: node.args[1:2]),
    (RENAMED, _renamed),
    (("cos", "sin"), lambda node: [ast.UnaryOp(ast.USub(), node)]),
    (
        ("where",),
        lambda node: (
            [node.args[1], with_(node, args=[node.args[k] for k in (0, 2, 1)])]
            if len(node.args) == 3
            else []
        ),
    ),
    (("concatenate", "cat"), _joined_backwards),
    ((ast.Call,), _over_other_axes),
    (("gelu",), lambda node: [with_(node, keywords=[] if node.keywords else [APPROXIMATELY])]),
    (("repeat",), lambda node: [helped(node, "_tiled")]),
    (
        COUNTED,
        lambda node: (
            [helped(node, COUNTED[name_of(node)]), *other_sums(node)]
            if isinstance(node.func, ast.Attribute)
            else []
        ),
    ),
    ((ast.Constant,), _other_numbers),
    # even and odd elements in place of halves, and the other way round, are told by name
    (
        (ast.Subscript,),
        lambda node: [node.value] * (getattr(node.slice, "step", node) is None),
    ),
)
"""One part of a line with one thing changed."""


def changed_function(
    source: Source, old: ast.AST, new: ast.AST, names: dict[str, Any]
) -> Callable[..., Any]:
    """
    Compile a function with one node replaced, which ends up among its own global names; the source
    itself stays as it is.
    """
    ast.fix_missing_locations(ast.copy_location(new, old))
    parent, field = source.parents[id(old)]
    own = getattr(parent, field)
    other = [new if each is old else each for each in own] if isinstance(own, list) else new
    setattr(parent, field, other)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # some mutants make little sense
            exec(compile(source.tree, "<mutant>", "exec"), names)
    finally:
        setattr(parent, field, own)
    found: Callable[..., Any] = names[source.function.name]
    return found


def _answer_of(
    operation: "SpecifiedOperation", source: Source, old: ast.AST, new: ast.AST
) -> Callable[[dict[str, Any]], Any]:
    """Compile a mutant when it is first asked."""

    @lru_cache(maxsize=1)
    def changed() -> Callable[..., Any]:
        return changed_function(source, old, new, operation.own.__globals__ | STAND_INS)

    def answer(inputs: dict[str, Any]) -> Any:
        with np.errstate(all="ignore"):
            return operation.with_function(changed()).evaluate(inputs)

    return answer
