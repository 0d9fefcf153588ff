"""
Nodes: what is left of a NumPy function once it has run on traced arrays.

Seven kinds are enough for everything that array code does:

    leaf     an input (exact), or a constant
    ew       an elementwise function of broadcast inputs: add, exp, maximum ...
    move     out.flat = concat(inputs flat, fill)[index]: every reshape, transpose, slice, gather,
             pad, concatenation and assignment in place
    select   where(condition, a, b); a condition on traced values has margins, the nodes whose sign
             decides it
    sum, max reductions, with their axes kept
    einsum   a product of two arrays, summed over letters
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from os.path import basename
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

_NONE = np.zeros(0, np.int64)
_own: tuple[str, ...] = (
    *(str(Path(__file__).parents[1]), str(Path(np.__file__).parent)),
    *("<frozen", "<__array_", "<string>"),
)
"""Where the frames between a user's line and a node lie."""


LARGE = 2**14
"""Multiplications from which on a product of matrices is faster than a loop."""


COLLECTED = "collected"
"""Name of the sums that a gradient makes of what was read of one element in several places."""


class NotUnderstood(ValueError):
    """What tracing has no rule for; the message begins with the line of the user's file."""


@dataclass(eq=False, slots=True)
class Node:
    """
    One step. ``value`` is what it is in float64; ``origin`` the line of the user's file that made
    it; ``made`` what a constant that the specification computes would be, were it no constant; the
    other fields belong to the kinds that the module's docstring names.
    """

    kind: str
    name: str
    inputs: list["Node"]
    value: ndarray
    const: bool = False
    axes: tuple[int, ...] = ()
    index: ndarray = field(default_factory=lambda: _NONE)
    fill: float = 0.0
    condition: ndarray = field(default_factory=lambda: _NONE)
    margins: tuple["Node", ...] = ()
    spec: tuple[str, str, str] = ("", "", "")
    terms: int = 1
    origin: str = ""
    made: "Node | None" = None

    def __post_init__(self) -> None:
        self.value = np.asarray(self.value, dtype=np.float64)
        if self.inputs:
            self.origin = where_called()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def is_number(self) -> bool:
        """Whether it is one constant number, as it is written."""
        return self.const and self.made is None and self.value.size == 1

    @property
    def number(self) -> float:
        return float(self.value.ravel()[0])


def product(spec: str, x: ndarray, y: ndarray) -> ndarray:
    """Compute an einsum of two, by products of matrices where it is large: to plan them costs."""
    letters = zip(spec.partition("->")[0].replace(",", ""), x.shape + y.shape, strict=True)
    found: ndarray = np.einsum(spec, x, y, optimize=prod(dict(letters).values()) > LARGE)
    return found


def constant(x: Any) -> Node:
    return Node("leaf", "constant", [], np.asarray(x, dtype=np.float64), const=True)


def stepped(kind: str, name: str, inputs: list[Node], value: Any, **fields: Any) -> Node:
    """
    Make the node of a step. Of constants alone it is one, which knows how it was made where that
    may be rounded: whole numbers and halves are not, nor is what is only moved.
    """
    if not all(each.const for each in inputs) or fields.get("margins"):
        return Node(kind, name, inputs, value, **fields)
    found = constant(value)
    twice = 2 * found.value[np.isfinite(found.value)]
    computes = kind in ("ew", "sum", "einsum") and (twice != np.rint(twice)).any()
    if computes or any(each.made for each in inputs):
        found.made = Node(kind, name, [each.made or each for each in inputs], value, **fields)
    return found


def where_called() -> str:
    """Find the line of the user's file that is running: "my_spec.py:12"."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_own):
        frame = frame.f_back  # type: ignore[assignment]
    return f"{basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else ""


def hide_frames(folder: Path) -> None:
    """Take the code of a folder for what lies between a user's line and a node."""
    global _own
    _own = (*_own, str(folder))


def refuse(what: str, hint: str = "") -> NotUnderstood:
    """Make the error that names the line and what is not understood there."""
    return NotUnderstood(f"{where_called()}: {what} is not understood{hint}")


def topological(outputs: Iterable[Node], margins: bool = True) -> list[Node]:
    """List the nodes behind these, inputs first; what decides a condition, if asked for."""
    seen: set[Node] = set()
    order: list[Node] = []
    stack = [(node, False) for node in outputs]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(each, False) for each in node.inputs]
            stack += [(each, False) for each in node.margins] if margins else []
    return order
