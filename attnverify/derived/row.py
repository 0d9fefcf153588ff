"""Recognising normalised rows, what a softmax is, by their structure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attnverify.derived.forms import source_of
from attnverify.derived.tracing.node import Node

Users = Callable[[Node], Iterator[Node | None]]


@dataclass(frozen=True)
class Row:
    """
    A quotient p_j = e_j / (sum_k e_k + rest) of exponentials: what a softmax is, sinks included.

    shifted  whether one number is subtracted from all exponents: it has no derivative
    """

    quotient: Node
    exponential: Node
    total: Node
    shifted: bool

    @property
    def axes(self) -> tuple[int, ...]:
        return self.total.axes


def exponentials_of(row: Row) -> list[Node]:
    """List the exponentials in a normaliser: the row's, and those of a sink."""
    found, queue, seen = [row.exponential], [row.quotient.inputs[1]], 0
    while queue and seen < 12:
        node, seen = queue.pop(), seen + 1
        if node.name == "exp":
            found.append(node)
        elif node.kind in ("move", "select") or node.name == "add":
            queue += [each for each in node.inputs if not each.const]
    return found


def find_row(users: Users, quotient: Node) -> Row | None:
    """Recognise a row by its structure: the divisor has a sum over the dividend in it."""
    e = quotient.inputs[0]
    total = _sum_of(e, quotient.inputs[1]) if e.name == "exp" else None
    if total is None:
        return None
    row = Row(quotient, e, total, False)
    return Row(quotient, e, total, _is_shifted(users, row))


def _sum_of(e: Node, divisor: Node) -> Node | None:
    queue, seen = [divisor], 0
    while queue and seen < 12:
        node, seen = queue.pop(), seen + 1
        if node.kind == "sum" and node.inputs[0] is e:
            return node
        if node.kind in ("move", "select") or node.name == "add":
            queue += [each for each in node.inputs if not each.const]
    return None


def _is_shifted(users: Users, row: Row) -> bool:
    """Tell whether one number, used for nothing else, is subtracted from all exponents of a row."""
    arguments = [e.inputs[0] for e in exponentials_of(row)]
    if not all(node.name == "subtract" for node in arguments):
        return False
    shifts = {source_of(node.inputs[1]) for node in arguments}
    shape = arguments[0].inputs[1].shape
    if len(shifts) > 1 or any(shape[a] != 1 for a in row.axes):
        return False
    return all(user is not None and user in arguments for user in users(shifts.pop()))
