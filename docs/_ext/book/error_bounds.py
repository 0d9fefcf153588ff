"""
How far off an operation may be: the bound, what it is built of, and how much of it implementations
use.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attnverify.bounds import BOUNDS
from attnverify.catalogue.operation import Operation
from attnverify.inputs.fixed_cases import fixed_cases
from book import facts, status
from book.docstrings import below

ROOT = Path(__file__).parents[3]


def section(operation: Operation) -> Iterator[str]:
    if operation.exact:
        yield (
            "It moves numbers and computes none: every element must agree bit for bit, the sign "
            "of zero included. There is no bound.\n"
        )
    else:
        yield from derivation(operation)
    yield from status.budgets(operation)


def derivation(operation: Operation) -> Iterator[str]:
    """What the bound is made of, rule by rule as formulas, and one case in numbers."""
    twin = BOUNDS[operation.name]
    yield (
        "Each element has a bound of its own. It is built of these rules (:doc:`/chapters/bounds` "
        "derives the smallest case; u is the unit roundoff of the format, g(k, u) = k u / (1 - k "
        "u) is k roundings in a row, acc(n) what a sum of n terms errs by as a share of the sum of "
        "their sizes, and E the error so far):\n"
    )
    for function in rules(twin):
        rule = facts.read()["rules"][function.__name__]
        place = Path(inspect.getfile(function)).relative_to(ROOT).as_posix()
        yield f"{rule['says']}\n"
        yield below(f".. math:: {rule['formula']}") + "\n"
        yield f"{rule['where']} (``{function.__name__}`` in ``{place}``)\n"
    yield from worked_number(operation)


def rules(twin: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The rules of a bound; where it calls none that has a formula, itself."""
    return steps(twin) or [twin]


def worked_number(operation: Operation) -> Iterator[str]:
    """The largest bound of the first fixed case, computed in the build."""
    recipe = fixed_cases(operation.name)[0]
    sizes = ", ".join(f"{letter} = {size}" for letter, size in recipe.sizes.items())
    yield (
        f"In numbers: the first of the suite's fixed cases ({sizes}), the largest bound of any "
        "element, and the same in units of the roundoff. The specification computes in float64 "
        "itself, and its own roundings are allowed too: they double what float64 may err by. What "
        "is kept in a half is computed in float32 and rounded where it is stored:\n"
    )
    yield ".. run::\n"
    yield from ("   " + line for line in NUMBER.format(name=operation.name).splitlines())
    yield ""


NUMBER = """\
from attnverify.bounds import bound
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.judge.case import case_of
from attnverify.precision import FORMATS, eager
for dtype in ("float64", "float32", "float16", "bfloat16"):
    case = case_of(fixed_cases("{name}")[0], dtype)
    allowed = next(leaves(bound("{name}", case.inputs, eager(FORMATS[dtype])))).max()
    print(f"{{dtype:8}} {{allowed:.2g}}, {{allowed / FORMATS[dtype].u:.3g}} u")
"""


def steps(function: Callable[..., Any], depth: int = 4) -> list[Callable[..., Any]]:
    """
    The documented functions of attnverify/bounds, with attnverify/bounds/error_rules.py that it
    calls, and those that they call, each once.
    """
    found: dict[str, Callable[..., Any]] = {}
    layer = [function]
    for _ in range(depth):
        layer = [
            called
            for caller in layer
            for called in calls(caller)
            if called.__name__ not in found and called is not function
        ]
        found |= {called.__name__: called for called in layer}
    return [called for called in found.values() if "=" in (inspect.getdoc(called) or "")]


def calls(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """The functions of the derivation whose names stand in its source."""
    names = {
        node.id: None
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
        if isinstance(node, ast.Name)
    }
    for name in names:
        value = inspect.unwrap(function).__globals__.get(name)
        if inspect.isfunction(value) and value.__module__.startswith(
            ("attnverify.bounds", "attnverify.bounds.error_rules")
        ):
            yield value
