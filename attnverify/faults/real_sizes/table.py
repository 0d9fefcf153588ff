"""
One line for each fault of a family: the same mistake in several operations, one stage of the
reference replaced.
"""

from typing import Any

from attnverify.faults.registry import fault, named

OURS = "this project"


def add_fault(operation: str, what: str, function: Any, **said: Any) -> None:
    """
    Register ``<operation>_<what>``, a function or stages of the reference that are replaced;
    ``said`` as :func:`attnverify.faults.registry.fault`.
    """
    wrong = named(f"{operation}_{what}", function)
    fault(said.pop("kind"), said.pop("words"), **{"source": OURS} | said)(wrong)
