"""
Changes of several places of a function at once, which one slip of a kernel makes: every running
sum without each row's own, a softmax over another axis, weights that are not rescaled when a later
tile has a larger maximum, a state that begins with the first row, a mean of the other classes.
"""

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from attnverify.specified.mutants.slips import (
    TILES,
    Change,
    Read,
    argument_of,
    axes_of,
    called,
    helped,
    name_of,
    named,
    with_,
)

RUNNING = {"_before": "cumsum without each row's own"} | {
    f"_by_chunks_of_{tile}": f"cumsum to the end of each chunk of {tile}" for tile in TILES
}
OVER_AXES = ("max", "min", "sum", "mean")


def changes_alike(function: ast.FunctionDef) -> Iterator[Change]:
    """Yield the changes of a whole function."""
    for helper, words in RUNNING.items():
        yield from _everywhere(function, ("cumsum",), partial(helped, helper=helper), words)
    yield from _over_another_axis(function)
    assigned: dict[str, ast.expr] = {
        statement.targets[0].id: statement.value
        for statement in ast.walk(function)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    }
    yield from _not_rescaled(function, assigned)
    yield from _without_chosen(function, assigned)
    for loop in ast.walk(function):
        if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name):
            yield from _begun(function, loop, loop.target.id)


def calls_of(function: ast.AST, names: Any) -> list[ast.Call]:
    return [x for x in ast.walk(function) if isinstance(x, ast.Call) and name_of(x) in names]


def _everywhere(
    function: ast.FunctionDef, names: Any, change: Callable[[Any], Any], words: str
) -> Iterator[Change]:
    """Yield every call of these names changed, and the same with 0 in place of NaN."""
    for guard in (False, True) if calls_of(function, names) else ():
        changed = copy.deepcopy(function)
        for call in calls_of(changed, names):
            vars(call).update(vars(change(call)))
        for node in ast.walk(changed) if guard else ():
            if isinstance(node, ast.Return) and node.value:
                node.value = called("_without_nan", node.value)
        told = f"every {words}{' (0 in place of NaN)' * guard}"
        yield function, with_(changed, told=told)


def _over_another_axis(function: ast.FunctionDef) -> Iterator[Change]:
    calls = calls_of(function, OVER_AXES)
    spelled = Counter(ast.unparse(axis) for call in calls for axis in axes_of(call))
    for axis in (axis for axis, count in spelled.items() if count > 1):
        for other in sorted({"0", "1", "-1", "-2"} - {axis}):

            def moved(node: Any, axis: str = axis, other: str = other) -> Any:
                keywords = [
                    with_(x, value=ast.Constant(int(other))) if ast.unparse(x.value) == axis else x
                    for x in node.keywords
                ]
                return with_(node, keywords=keywords)

            yield from _everywhere(
                function,
                OVER_AXES,
                moved,
                f"reduction over axis={other} in place of {axis}",
            )


def _not_rescaled(function: ast.FunctionDef, assigned: dict[str, ast.expr]) -> Iterator[Change]:
    """Yield exponentials of which those of earlier tiles have the maximum of then."""
    tops = {name: value for name, value in assigned.items() if calls_of(value, ("max",))}
    for name, its_value in assigned.items():
        value: Any = its_value
        if not isinstance(value, ast.Call) or name_of(value) != "exp":
            continue
        for top, its in tops.items():
            value = Read(top, its).visit(copy.deepcopy(value))
        for tile in TILES if calls_of(value, ("max",)) else ():
            other = copy.deepcopy(value)
            for call in calls_of(other, ("max",)):
                vars(call).update(vars(helped(call, f"_running_max_of_{tile}")))
            for parent in ast.walk(function):
                for node in ast.iter_child_nodes(parent):
                    if (
                        isinstance(node, ast.Name)
                        and node.id == name
                        and isinstance(node.ctx, ast.Load)
                    ):
                        place = ast.unparse(parent)[:60]
                        told = f"`{name}` of `{place}` not rescaled when a later tile of {tile}"
                        told += " has a larger maximum"
                        yield node, with_(other, told=told)


def _without_chosen(function: ast.FunctionDef, assigned: dict[str, ast.expr]) -> Iterator[Change]:
    """Yield means without the number that is taken from the same array by its place."""
    for name, value in assigned.items():
        taken = calls_of(value, ("take_along_axis", "gather"))
        for call in calls_of(function, ("mean",)) if taken else ():
            if ast.unparse(argument_of(call)) == ast.unparse(argument_of(taken[0])):
                told = f"`{ast.unparse(call)}` as the mean of the other n - 1, without `{name}`"
                other = helped(call, "_of_the_others")
                own, *rest = other.args
                yield call, with_(other, args=[own, named(name), *rest], told=told)


def _begun(function: ast.FunctionDef, loop: ast.For, at: str) -> Iterator[Change]:
    """Yield a state that begins with what the loop reads first, in place of zeros."""
    reads = {
        ast.unparse(node): node
        for statement in loop.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and any(getattr(x, "id", "") == at for x in ast.walk(node.slice))
    }
    for zeros in calls_of(function, ("zeros",)):
        for node in reads.values():
            yield zeros, Read(at, ast.Constant(0)).visit(copy.deepcopy(node))
