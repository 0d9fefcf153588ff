"""
An example for each numbered clause of the specification: a function that is given an operation and
asserts what the clause says of it. With it stand its twins, operations of which the clause is
false; the example must notice each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest.mock import patch

from attnverify import spec

Function = Callable[..., Any]
Example = Callable[[Function], None]


@dataclass(frozen=True)
class Shown:
    """
    An example, the clause that it shows, the operation that it is given (another one where the
    clause of a forward operation speaks of its gradient), and the twins on which it must fail.
    """

    operation: str
    number: int
    by: str
    example: Example
    twins: tuple[Function, ...]


EXAMPLES: list[Shown] = []


def clause(
    operation: str, number: int, *, false: Function | list[Function], by: str | None = None
) -> Any:
    """Enter an example of this clause; an operation's inputs are given by their names."""
    twins = tuple(false) if isinstance(false, list) else (false,)

    def enter(example: Example) -> Example:
        EXAMPLES.append(Shown(operation, number, by or operation, example, twins))
        return example

    return enter


def given(operation: str, change: Callable[..., dict[str, Any]]) -> Function:
    """Twin: the operation where some inputs are replaced by what ``change`` makes of them all."""
    right = getattr(spec, operation)
    return lambda **inputs: right(**inputs | change(**inputs))


def answering(operation: str, change: Function) -> Function:
    """Twin: the operation with another answer, made of the right one and the inputs."""
    right = getattr(spec, operation)
    return lambda **inputs: change(right(**inputs), **inputs)


def patched(operation: str, module: ModuleType, name: str, wrong: Function) -> Function:
    """Twin: the operation where one function that it calls is another one."""

    def twin(**inputs: Any) -> Any:
        with patch.object(module, name, wrong):
            return getattr(spec, operation)(**inputs)

    return twin


def refuses(function: Function, words: str, **inputs: Any) -> bool:
    """Whether a call is refused as invalid, in these words."""
    try:
        function(**inputs)
    except ValueError as error:
        return words in str(error)
    return False
