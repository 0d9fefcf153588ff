"""What an operation from outside of the catalogue brings with it, in the place of our tables."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

Inputs = dict[str, Any]
Mutant = tuple[str, Callable[[Inputs], Any], int]
"""Its words, what it answers, and its rank among those that fit: 1, 2, and last what rounds."""
Number = tuple[Callable[[float], str], float, Callable[[float], Callable[[Inputs], Any]]]
"""What another in its place is called, itself, and what the operation answers with another."""


@dataclass(frozen=True)
class Answer:
    """
    How a class answers an operation: the class as a function of the operation's arguments, and
    whether a class can be made as the operation's own is.
    """

    as_function: Callable[[type], Callable[..., Any]]
    fits: Callable[[type], bool]


ANSWERS: dict[str, dict[str, Answer]] = {}
"""
By the names of what answers, a class ``ModelNew`` for a problem file, a function ``run`` for a
definition: the operations that wait.
"""


def answers_of(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """
    Find the classes of a module that answer an operation. Where several wait for one, it answers
    that whose name is in the file's, or the only one that it fits; else ValueError.
    """
    for kind, waiting in ANSWERS.items():
        own = getattr(module, kind, None)
        if not callable(own):
            continue
        file = Path(getattr(module, "__file__", None) or "")
        named = [name for name in waiting if name in file.stem.lower()]
        found = [name for name in named if name == max(named, key=len)] or [*waiting]
        if len(found) > 1:
            found = [name for name in found if waiting[name].fits(own)]
        if len(found) != 1:
            found = found or [*waiting]
            raise ValueError(
                f"{kind} of {file.name} answers one of {', '.join(found)}: wanted a file named "
                f"after it, as {found[0]}_new.py, got {file.name}"
            )
        yield found[0], waiting[found[0]].as_function(own)


class Outside(Protocol):
    """
    The inputs, trivial answers and mutants of an operation that is read off somebody's own
    specification; :mod:`attnverify.specified` makes them.
    """

    @property
    def undeclared(self) -> str:
        """The preset by which it is judged where a file declares no arithmetic."""

    @property
    def floats(self) -> tuple[str, ...]:
        """The names of its arrays of floats."""

    def fitted(self, sizes: dict[str, int]) -> dict[str, int]:
        """Return the nearest sizes that it takes."""

    def draw(self, choose: Callable[[Sequence[Any]], Any]) -> dict[str, Any]:
        """Draw the parts of a recipe."""

    def fixed(self) -> Iterable[dict[str, Any]]:
        """List the parts of the recipes that every implementation meets."""

    def expand(self, recipe: Any, dtype: str) -> Inputs:
        """Make the arguments of a recipe."""

    def trivial_answers(self, inputs: Inputs, expected: Any) -> Iterable[Any]:
        """List cheap wrong answers."""

    def mutants(self) -> Sequence[Mutant]:
        """List the specification with one thing changed, each with its words."""

    def nearest_to_bound(self, inputs: Inputs, precision: Any) -> float:
        """Search for the legal evaluation that comes nearest to its bound: the share it uses."""

    def numbers(self) -> Sequence[Number]:
        """List the numbers that are written in it, or in what it calls."""
