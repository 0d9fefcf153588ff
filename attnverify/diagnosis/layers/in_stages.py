"""
Operations whose reference is another one, so that two mistakes can be put into one function.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnverify.catalogue.operation import Operation
from attnverify.reference import layers


@dataclass(frozen=True)
class Replaced(Operation):
    """An operation that is computed by another function than its reference."""

    function: Callable[..., Any]

    @property
    def reference(self) -> Callable[..., Any]:
        return self.function


def with_reference(operation: Operation, function: Callable[..., Any]) -> Operation:
    """The same operation, computed by the function; what is known of its arguments is kept."""
    own = operation.name, operation.chapter, operation.specification
    made = Replaced(*own, function)
    vars(made).update(vars(operation) | vars(made))
    return made


def in_stages(operation: Operation) -> Callable[..., Any]:
    """The function of a layer that takes its stages as arguments."""
    if isinstance(operation, Replaced):
        return operation.reference
    found: Callable[..., Any] = getattr(layers, operation.name)
    return found
