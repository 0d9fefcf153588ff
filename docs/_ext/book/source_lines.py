"""Literal source: the statement of the specification that a few words of it name."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import CHAPTERS

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Passage:
    """Some lines of a file as they stand, less their common indentation."""

    text: str
    place: str
    function: str


def find(anchor: str) -> Passage:
    """
    The smallest statement that contains the words of an anchor, ``"function: words"``.

    It fails where the words stand nowhere, or in several statements: a page never shows another
    line than it means.
    """
    name, _, words = anchor.partition(": ")
    function = named(name)
    lines, first = inspect.getsourcelines(function)
    found = list(statements(lines, words))
    if len(found) != 1:
        raise ValueError(
            f"anchor: wanted words of one statement of {name}, got {words!r}, which stands in "
            f"{len(found)}"
        )
    begin, end = found[0]
    place = Path(inspect.getfile(function)).relative_to(ROOT).as_posix()
    where = f"{first + begin - 1}" if begin == end else f"{first + begin - 1}-{first + end - 1}"
    return Passage(
        textwrap.dedent("".join(lines[begin - 1 : end])).rstrip(), f"{place}:{where}", name
    )


def named(name: str) -> Any:
    """A function of spec/ by its bare name, the helpers of a chapter included."""
    for chapter in CHAPTERS:
        function = vars(importlib.import_module(f"attnverify.spec.{chapter}")).get(name)
        if inspect.isfunction(function) and function.__module__.startswith("attnverify.spec."):
            return function
    raise ValueError(f"anchor: wanted a function of spec/, got {name!r}")


def whole(function: Any, shown: Any = None) -> list[Passage]:
    """
    A function of spec/ without its docstring, then the helpers of its chapter and of others that it
    calls, each once: what is no operation and checks no argument. Those that are shown with another
    function already are left out.
    """
    before = called(shown) if shown else []
    helpers = [named(name) for name in called(function) if name not in before]
    return [without_docstring(each) for each in (function, *helpers)]


def called(function: Any) -> list[str]:
    """The names of helpers that a function calls, directly or through one another."""
    names: dict[str, None] = {}
    waiting = [function]
    while waiting:
        tree = ast.parse(textwrap.dedent(inspect.getsource(waiting.pop(0))))
        for node in ast.walk(tree):
            name = node.id if isinstance(node, ast.Name) else ""
            if name not in names and is_helper(name):
                names[name] = None
                waiting.append(named(name))
    return list(names)


def is_helper(name: str) -> bool:
    """Whether a function of that name belongs to the specification and has no page of its own."""
    if name in CATALOGUE or name.startswith("check"):
        return False
    return any(
        inspect.isfunction(function := vars(importlib.import_module(module)).get(name))
        and function.__module__.startswith("attnverify.spec.")
        for module in (f"attnverify.spec.{chapter}" for chapter in CHAPTERS)
    )


def without_docstring(function: Any) -> Passage:
    lines, first = inspect.getsourcelines(function)
    (tree,) = ast.parse("".join(lines)).body
    assert isinstance(tree, ast.FunctionDef)
    place = Path(inspect.getfile(function)).relative_to(ROOT).as_posix()
    if ast.get_docstring(tree):
        told = tree.body[0]
        lines[told.lineno - 1 : told.end_lineno] = []
    return Passage("".join(lines).rstrip(), f"{place}:{first}", function.__name__)


def statements(lines: list[str], words: str) -> Iterator[tuple[int, int]]:
    """
    First and last line of each smallest statement that holds the words on one of its own lines.
    """
    (function,) = ast.parse(textwrap.dedent("".join(lines))).body
    assert isinstance(function, ast.FunctionDef)
    body = function.body[bool(ast.get_docstring(function)) :]
    nodes = [
        node for statement in body for node in ast.walk(statement) if isinstance(node, ast.stmt)
    ]
    spans = [(node.lineno, node.end_lineno or node.lineno) for node in nodes]
    hit = [number for number, line in enumerate(lines, 1) if words in line]
    holding = {
        min((s for s in spans if s[0] <= n <= s[1]), key=lambda s: s[1] - s[0], default=(0, 0))
        for n in hit
    }
    yield from sorted(span for span in holding if span != (0, 0))
