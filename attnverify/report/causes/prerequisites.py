"""Which operations another is built on, read off the code of the specification."""

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from attnverify.catalogue.operation import CATALOGUE

LAYERS = frozenset(name for name, operation in CATALOGUE.items() if operation.chapter == "layers")


@lru_cache
def operations_used_by(operation: str) -> frozenset[str]:
    """
    List the operations that the specification calls for this one, and, for a layer, the attentions
    that are made of nothing else.
    """
    inner = frozenset(operations_inside(operation))
    if operation not in LAYERS:
        return inner
    return inner | {
        name
        for name in CATALOGUE
        if name not in LAYERS and (made_of := operations_used_by(name)) and made_of <= inner
    }


def operations_inside(operation: str) -> set[str]:
    """List what an operation calls, and what that calls, without the operation."""
    met, to_read = {operation}, [operation]
    while to_read:
        called = {*called_operations(CATALOGUE[to_read.pop()].specification)} - met
        met |= called
        to_read += called
    return met - {operation}


def called_operations(
    function: Callable[..., Any], met: frozenset[str] = frozenset()
) -> Iterator[str]:
    """
    Yield the operations that a function of the specification calls, or those of its own that it
    calls. A name of theirs in a library (``torch.nn.functional.softmax``) is none.
    """
    function = inspect.unwrap(function)
    for name in names_in(function.__code__):
        own = getattr(sys.modules[function.__module__], name, None)
        if name in CATALOGUE and inspect.isfunction(own):
            yield name
        elif (
            inspect.isfunction(own)
            and own.__module__.startswith("attnverify.spec.")
            and name not in met
        ):
            yield from called_operations(own, met | {name})


def names_in(code: Any) -> set[str]:
    """Find the global names of a code object and of those inside it."""
    return set(code.co_names).union(
        *(names_in(constant) for constant in code.co_consts if hasattr(constant, "co_names"))
    )
