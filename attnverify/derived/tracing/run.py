"""Running a specification on traced arrays, with a NumPy whose new arrays can hold them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.derived.tracing import elementwise, moves, sums
from attnverify.derived.tracing.array import DECISIONS, Condition, Traced, node_of, numbers
from attnverify.derived.tracing.node import Node, constant, refuse

TABLES = (moves, sums, elementwise)
"""The modules that say what each function of NumPy leaves in the graph."""

MAKES_ARRAYS = ("zeros", "ones", "empty", "full")


@dataclass(frozen=True)
class Trace:
    """
    A specification that was run once: its outputs as a tree of nodes (None where it gives None),
    the nodes of its float inputs by name, and what it decided by values.
    """

    outputs: Any
    inputs: dict[str, Any]
    decisions: list[tuple[Node, bool]]

    @property
    def nodes(self) -> list[Node]:
        return [node for node in leaves(self.outputs) if node is not None]


def trace(specification: Callable[..., Any], inputs: Mapping[str, Any]) -> Trace:
    """
    Run a specification on these arguments. Float arrays are traced; masks, indices and numbers are
    plain. Raises NotUnderstood where something has no rule.
    """
    given = {name: map_leaves(partial(_leaf_of, name), value) for name, value in inputs.items()}
    noted: list[tuple[Node, bool]] = []
    token = DECISIONS.set(noted)
    try:
        with np.errstate(all="ignore"), numpy_of_traces(specification):
            answer = specification(**given)
    finally:
        DECISIONS.reset(token)
    return Trace(map_leaves(lambda x: None if x is None else node_of(x), answer), given, noted)


def _leaf_of(name: str, x: Any) -> Any:
    is_float = isinstance(x, ndarray) and x.dtype.kind == "f"
    return Traced(Node("leaf", name, [], x)) if is_float else numbers(x)


class TracingNumpy(ModuleType):
    """
    NumPy as a specification sees it while it is traced: arrays that it makes can be written into.
    """

    def __init__(self) -> None:
        super().__init__("numpy")

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if name in ("array", "asarray", "ascontiguousarray"):
            return lambda x, *args, **options: _array_of(found, x, *args, **options)
        if name == "linspace":
            return linspace
        if name in ("arange", "indices"):
            return lambda *args, **options: numbers(found(*args, **options))
        return partial(_writable, found) if name in MAKES_ARRAYS else found


def _array_of(make: Callable[..., Any], x: Any, *args: Any, **options: Any) -> Any:
    """Make an array: traced where its elements are, a stack of them."""
    if isinstance(x, (Traced, Condition)):
        return x
    if any(isinstance(part, Traced) for part in leaves(x)):
        if not isinstance(x, (list, tuple)):
            raise refuse("np.array of this")
        return np.stack([_array_of(make, part) for part in x])
    return numbers(make(x, *args, **options))


def linspace(start: float, stop: float, num: int = 50, endpoint: bool = True) -> Any:
    """Write equal steps as products of whole numbers, as kernels make them."""
    return numbers(np.arange(num)) * ((stop - start) / max(num - endpoint, 1)) + start


def _writable(make: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
    plain = make(*args, **options)
    return Traced(constant(plain)) if plain.dtype.kind == "f" else plain


@contextmanager
def numpy_of_traces(specification: Callable[..., Any]) -> Iterator[None]:
    """Put that NumPy in the place of NumPy in the specification's module while it runs."""
    names: dict[str, Any] = getattr(specification, "__globals__", {})
    places = [name for name, value in names.items() if value is np]
    names.update(dict.fromkeys(places, TracingNumpy()))
    try:
        yield
    finally:
        names.update(dict.fromkeys(places, np))
