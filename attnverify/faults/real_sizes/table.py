"""
One line for each fault of a family: the same mistake in several operations, one stage of the
reference replaced.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from attnverify.faults.registry import fault
from attnverify.reference import attention, gradients, layers

OURS = "this project"


def reference_of(operation: str) -> Callable[..., Any]:
    """The operation in stages."""
    modules: tuple[ModuleType, ...] = (attention, gradients, layers)
    found: Callable[..., Any] = next(
        vars(module)[operation] for module in modules if operation in vars(module)
    )
    return found


def add_fault(operation: str, what: str, function: Callable[..., Any], **said: Any) -> None:
    """Register ``<operation>_<what>``; ``said`` as :func:`attnverify.faults.registry.fault`."""

    def wrong(**given: Any) -> Any:
        return function(**given)

    wrong.__name__ = f"{operation}_{what}"
    fault(said.pop("kind"), said.pop("words"), **{"source": OURS} | said)(wrong)


def add_staged(operation: str, what: str, stages: dict[str, Any], **said: Any) -> None:
    """The same, the reference with some of its stages replaced."""
    reference = reference_of(operation)
    add_fault(operation, what, lambda **given: reference(**given, **stages), **said)
