"""
Steps that come out otherwise: while a specification runs on traced arrays, each elementwise
function, reduction, product, choice and padding is a step with a number, and one of them can give
what another function of the same arguments gives.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from numpy import ndarray

from attnverify.derived.tracing.node import where_called


@dataclass(frozen=True)
class Step:
    """The function that makes a step, its arguments, and the line of the user's file."""

    name: str
    arguments: tuple[Any, ...]
    line: str


@dataclass
class Steps:
    """The steps of a run; those with the numbers ``at`` give what ``other`` gives."""

    at: tuple[int, ...] = ()
    other: Callable[..., Any] | None = None
    seen: list[Step] = field(default_factory=list)

    def __call__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        found = function(*arguments)
        if isinstance(found, ndarray) or getattr(getattr(found, "node", found), "const", False):
            return found
        is_it = self.other is not None and len(self.seen) in self.at
        self.seen.append(Step(function.__name__, arguments, where_called()))
        return self.other(*arguments) if is_it and self.other else found


STEPS: ContextVar[Steps | None] = ContextVar("steps", default=None)


def step(function: Callable[..., Any]) -> Callable[..., Any]:
    """Count the calls of a function, not those inside it, as steps."""

    @wraps(function)
    def made(*arguments: Any) -> Any:
        steps = STEPS.get()
        if steps is None:
            return function(*arguments)
        with counted_by(None):
            return steps(function, arguments)

    return made


@contextmanager
def counted_by(steps: Steps | None) -> Iterator[None]:
    """Count, or change, the steps that are made meanwhile."""
    token = STEPS.set(steps)
    try:
        yield
    finally:
        STEPS.reset(token)
