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
from book import status

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
    """The docstring of the bound, and of every function of the derivation that it calls."""
    twin = BOUNDS[operation.name]
    yield (
        "The bound of each element is derived, in the docstrings of the functions that evaluate "
        "it (:doc:`/chapters/bounds` tells how):\n"
    )
    for function in (twin, *steps(twin)):
        place = Path(inspect.getfile(function)).relative_to(ROOT).as_posix()
        yield f".. code-block:: none\n   :caption: {function.__name__}, {place}\n"
        yield from ("   " + line for line in (inspect.getdoc(function) or "").splitlines())
        yield ""


def steps(function: Callable[..., Any], depth: int = 3) -> list[Callable[..., Any]]:
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
