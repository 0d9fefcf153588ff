"""
What a docstring of the specification says, in parts: its sentence and its numbered clauses.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]

CLAUSE = re.compile(r"^(\d+)\. ")


def paragraphs(function: Function) -> list[str]:
    """Cut the docstring into the blocks between blank lines, as they stand."""
    return re.split(r"\n\s*\n", inspect.getdoc(function) or "")


def sentence(function: Function) -> str:
    """Return the first sentence, in one line."""
    return " ".join(paragraphs(function)[0].split())


def clauses(function: Function) -> dict[int, str]:
    """Return the numbered clauses."""
    found: dict[int, str] = {}
    for block in paragraphs(function):
        for line in block.splitlines() if CLAUSE.match(block) else []:
            number = CLAUSE.match(line)
            if number:
                found[int(number[1])] = line[number.end() :]
            else:
                found[max(found)] += " " + line.strip()
    return found


def anchor_of_clause(operation: str, number: int) -> str:
    """Name the place of a clause on the operation's page of the book."""
    return f"{operation.replace('_', '-')}-clause-{number}"


FORMULA = re.compile(r":math:`([^`]+)`")
EXPONENT = re.compile(r"\^\{([^}]*)\}")
REFERENCE = re.compile(r":\w+:`~?(?:[\w.]*\.)?([^`.]+)`")


def without_markup(text: str) -> str:
    """
    Return the words of reStructuredText without its marks.

    >>> without_markup("``p`` is a :func:`attnverify.spec.attention.dropout`")
    'p is a dropout'
    >>> without_markup("from :math:`2^{-8/n}` downwards")
    'from 2^(-8/n) downwards'
    """
    spoken = FORMULA.sub(lambda found: EXPONENT.sub(r"^(\1)", found[1]), text)
    return REFERENCE.sub(r"\1", spoken).replace("``", "")
