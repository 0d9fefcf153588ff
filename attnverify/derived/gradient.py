"""
Reverse mode on a traced graph: the gradient is a graph again, and so has a bound of its own.

What is only subtracted from exponents has no derivative, by structure: carried along as numbers,
its adjoint is what rounding left of a zero, and would stand for paths that no kernel has.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.derived.forms import source_of
from attnverify.derived.graph import Graph
from attnverify.derived.row import Row
from attnverify.derived.tracing.array import Traced, move, spread
from attnverify.derived.tracing.elementwise import compared, where
from attnverify.derived.tracing.node import COLLECTED, Node, refuse
from attnverify.derived.tracing.sums import einsum

Place = tuple[str, str, int, int]


@dataclass(frozen=True)
class Given:
    """
    What a node gives back to one of its inputs, which was given so much ``before`` it: the adjoint
    of the node itself, d, and the ``part`` of the input. Its ``place`` is the same at all sizes:
    the line, the function, which of these it is, and which of its inputs.
    """

    place: Place
    through: Node
    to: Node
    d: Traced
    part: Traced
    before: Traced | None


def added(given: Given) -> Traced:
    return given.part if given.before is None else given.before + given.part


Collect = Callable[[Given], Traced]


def gradient(
    outputs: list[tuple[Node, ndarray]], inputs: list[Node], collect: Collect = added
) -> list[Traced | None]:
    """
    Compute the gradients of sum(output * d_output) over all outputs by each of the inputs; None
    where none of them depends on it. Parts are added up, or whatever else is asked for.
    """
    graph = Graph([node for node, _ in outputs])
    back = _Backward(graph, set(inputs), collect)
    for node, d_output in outputs:
        back.give(node, Traced(Node("leaf", "d_output", [], d_output)))
    for node in reversed(graph.main):
        if node in back.found and node.kind != "leaf":
            back.visit(node)
    return [back.found.get(node) for node in inputs]


class _Backward:
    def __init__(self, graph: Graph, wanted: set[Node], collect: Collect) -> None:
        self.graph, self.found = graph, dict[Node, Traced]()
        self.collect, self.count, self.through = collect, -len(graph.outputs), graph.outputs[0]
        self.places, alike = dict[Node, tuple[str, str, int]](), Counter[tuple[str, str]]()
        for node in graph.main:
            own = node.origin, node.name
            self.places[node] = (*own, alike[own])
            alike[own] += 1
        self.needed = set(wanted)
        for node in graph.main:
            if any(each in self.needed for each in node.inputs):
                self.needed.add(node)
        self.mass: dict[Node, ndarray] = {}

    def give(self, node: Node, part: Traced) -> None:
        """Add to the adjoint of a node; the sizes of what is added are kept beside it."""
        if node not in self.needed:
            return
        part = without_lead(part, node.shape)
        self.mass[node] = self.mass.get(node, 0.0) + np.abs(part.node.value)
        d, before = self.found.get(self.through, part), self.found.get(node)
        place = (*self.places[self.through], self.count)
        given = Given(place, self.through, node, d, part, before)
        self.found[node] = self.collect(given)
        self.count += 1

    def visit(self, node: Node) -> None:
        self.through, self.count, d = node, 0, self.found[node]
        if self._is_phantom(node, d):
            return
        if node in self.graph.rows:
            self._row(self.graph.rows[node], d)
        elif node.name == "log" and (total := sum_of_exponentials(node.inputs[0])):
            self._log_sum_exp(node.inputs[0], total, d)
        elif node in self.graph.shifted:
            self.give(node.inputs[0], d)
        else:
            _VISITS[node.kind](self, node, d)

    def _is_phantom(self, node: Node, d: Traced) -> bool:
        """A maximum whose adjoint is rounding alone: it was subtracted and added again."""
        behind = source_of(node)
        sources = [behind, *(map(source_of, behind.inputs) if behind.name == "maximum" else ())]
        if all(each.kind != "max" for each in sources):
            return False
        size = np.nanmax(np.abs(d.node.value), initial=0)
        return bool(size <= 1e-11 * np.nanmax(self.mass[node], initial=0))

    def _row(self, row: Row, d: Traced) -> None:
        """p (d - sum p d) goes to the exponents, -sum p d / S to the rest of the normaliser."""
        p = Traced(row.quotient)
        mean = np.sum(p * d, axis=row.axes, keepdims=True)
        self.give(row.exponential.inputs[0], p * (d - mean))
        divisor = row.quotient.inputs[1]
        if _has_more(divisor, row.total):
            self._give_rest(divisor, row.total, -mean / Traced(divisor))

    def _log_sum_exp(self, divisor: Node, total: Node, d: Traced) -> None:
        """d goes to the exponents by their weights, which kernels make as those of the row."""
        e, shape = total.inputs[0], total.shape
        weights = Traced(e) / Traced(divisor).reshape(shape)
        self.give(e.inputs[0], weights * d.reshape(shape))
        if _has_more(divisor, total):
            self._give_rest(divisor, total, d / Traced(divisor))

    def _give_rest(self, node: Node, total: Node, d: Traced) -> None:
        """Give what arrives at a normaliser to all that is in it beside the sum of its row."""
        if node is total or node.const:
            return
        if not _holds(node, total):
            self.give(node, d)
        elif node.kind == "select":
            for each, chosen in zip(node.inputs, (node.condition, ~node.condition), strict=True):
                self._give_rest(each, total, where(chosen, d, 0.0))
        elif node.kind == "move":
            start = 0
            for each in node.inputs:
                self._give_rest(each, total, _transposed(d, node.index, start, each.shape))
                start += each.value.size
        else:
            for each in node.inputs:
                self._give_rest(each, total, without_lead(d, each.shape))

    def elementwise(self, node: Node, d: Traced) -> None:
        ins = [Traced(each) for each in node.inputs]
        if node.name == "multiply" and node.inputs[0] is node.inputs[1]:
            self.give(node.inputs[0], d * (2.0 * ins[0]))
            return
        if node.name not in PARTS:
            raise refuse(f"the gradient of {node.name}")
        for each, part in zip(node.inputs, PARTS[node.name](d, Traced(node), *ins), strict=True):
            if each in self.needed:
                self.give(each, part())

    def select(self, node: Node, d: Traced) -> None:
        self.give(node.inputs[0], where(node.condition, d, 0.0))
        self.give(node.inputs[1], where(node.condition, 0.0, d))

    def sum(self, node: Node, d: Traced) -> None:
        shape = node.inputs[0].shape
        self.give(node.inputs[0], move(lambda i: np.broadcast_to(i, shape), [d]))

    def max(self, node: Node, d: Traced) -> None:
        """All goes to the first of the largest; where rounding or a tie says who, to any."""
        x, shape = node.inputs[0], node.inputs[0].shape
        given = kink(first_of(x.value == node.value, node.axes), Traced(spread(d.node, shape)), 0.0)
        given.node.margins, given.node.axes = (x,), node.axes
        self.give(x, given)

    def einsum(self, node: Node, d: Traced) -> None:
        (a, b, out), (x, y) = node.spec, node.inputs
        if x in self.needed:
            self.give(x, _spread_einsum(f"{out},{b}->{a}", d, Traced(y), x.shape))
        if y in self.needed:
            self.give(y, _spread_einsum(f"{a},{out}->{b}", Traced(x), d, y.shape))

    def move(self, node: Node, d: Traced) -> None:
        start = 0
        for each in node.inputs:
            if each in self.needed:
                self.give(each, _transposed(d, node.index, start, each.shape))
            start += each.value.size


_VISITS: dict[str, Callable[[_Backward, Node, Traced], None]] = {
    "ew": _Backward.elementwise,
    "select": _Backward.select,
    "sum": _Backward.sum,
    "max": _Backward.max,
    "einsum": _Backward.einsum,
    "move": _Backward.move,
}


def _spread_einsum(spec: str, x: Traced, y: Traced, shape: tuple[int, ...]) -> Traced:
    """Compute the adjoint of a factor, also along letters that it alone had."""
    (ins, _, out) = spec.partition("->")
    known = [c for c in out if c in ins]
    found = einsum(f"{ins}->{''.join(known)}", x, y)
    lead = tuple(n if c in known else 1 for c, n in zip(out, shape, strict=True))
    return move(lambda i: np.broadcast_to(i.reshape(lead), shape), [found])


def without_lead(g: Traced, shape: tuple[int, ...]) -> Traced:
    """Sum over what a broadcast added."""
    lead = g.ndim - len(shape)
    grown = (i + lead for i, n in enumerate(shape) if n == 1 and g.shape[i + lead] != 1)
    axes = (*range(lead), *grown)
    g = _collected(np.sum(g, axis=axes, keepdims=True)) if axes else g
    return g.reshape(tuple(shape)) if g.shape != tuple(shape) else g


def _has_more(node: Node, total: Node) -> bool:
    """Tell whether a normaliser has more in it than the sum of the row."""
    if node is total or node.const:
        return False
    moved = node.kind in ("move", "select")
    return not moved or any(_has_more(each, total) for each in node.inputs)


def sum_of_exponentials(divisor: Node) -> Node | None:
    """
    Find the sum over exponentials in the argument of a logarithm, behind choices and sums, and
    behind a reshape, as that of a sum that keeps no axes.
    """
    queue = [divisor]
    while queue:
        node = queue.pop()
        if node.kind == "sum" and node.inputs[0].name == "exp":
            return node if node.value.size == divisor.value.size else None
        if node.kind == "select" or node.name == "add" or _is_reshape(node):
            queue += [each for each in node.inputs if not each.const]
    return None


def _is_reshape(node: Node) -> bool:
    """Tell whether a move leaves all elements in their order."""
    return node.kind == "move" and np.array_equal(node.index.ravel(), np.arange(node.value.size))


def _holds(node: Node, total: Node) -> bool:
    """Tell whether a normaliser has the sum of a row in it."""
    if node is total:
        return True
    inner = node.kind in ("select", "move") or node.name == "add"
    return inner and any(_holds(each, total) for each in node.inputs)


def _transposed(d: Traced, index: ndarray, start: int, shape: tuple[int, ...]) -> Traced:
    """Compute the adjoint of a move: every element collects what was read from it."""
    size, flat = int(np.prod(shape)), index.ravel()
    mine = np.flatnonzero((flat >= start) & (flat < start + size))
    deepest = np.bincount(flat[mine] - start, minlength=size).max(initial=0)
    order = np.argsort(flat[mine], kind="stable")
    source = flat[mine][order] - start
    place = np.arange(len(source)) - np.searchsorted(source, source)
    back = np.full((size, max(deepest, 1)), -1)
    back[source, place] = mine[order]
    gathered = move(lambda i: np.append(i, -1)[back], [d])
    if deepest <= 1:
        return gathered.reshape(shape)
    return _collected(np.sum(gathered, axis=-1)).reshape(shape)


def _collected(total: Traced) -> Traced:
    if total.node.kind == "sum":
        total.node.name = COLLECTED
    return total


def _where_read(d: Traced, found: Traced) -> Traced:
    """A derivative, and 0 where nothing hangs on it, as behind 1 / (1 + e^x) or a guarded root."""
    lost = np.isnan(found.node.value) & (d.node.value == 0)
    return where(lost, 0.0, found) if lost.any() else found


def kink(condition: Any, a: Any, b: Any) -> Traced:
    """Choose as a derivative does at a kink, where either side, and all between, is right."""
    found = where(condition, a, b)
    found.node.fill = 1.0
    return found


def first_of(hit: ndarray, axes: tuple[int, ...]) -> ndarray:
    """Keep the first of those that are true along some axes."""
    moved = np.moveaxis(hit, axes, range(len(axes)))
    flat = moved.reshape(-1, *moved.shape[len(axes) :])
    first = flat & (np.cumsum(flat, axis=0) == 1)
    return np.moveaxis(first.reshape(moved.shape), range(len(axes)), axes)


def _first_larger(d: Traced, a: Traced, b: Traced, larger: bool) -> tuple[Any, Any]:
    first = compared("greater" if larger else "less", a, b)
    return lambda: kink(first, d, 0.0), lambda: kink(first, 0.0, d)


def _sign_of(d: Traced, a: Traced) -> Traced:
    above, below = compared("greater", a, 0.0), compared("less", a, 0.0)
    return kink(above, d, 0.0) - kink(below, d, 0.0)


PARTS: dict[str, Callable[..., tuple[Callable[[], Traced], ...]]] = {
    "add": lambda d, y, a, b: (lambda: d, lambda: d),
    "subtract": lambda d, y, a, b: (lambda: d, lambda: -d),
    "multiply": lambda d, y, a, b: (lambda: d * b, lambda: d * a),
    "divide": lambda d, y, a, b: (
        lambda: _where_read(d, d / b),
        lambda: _where_read(d, -(d * y) / b),
    ),
    "negative": lambda d, y, a: (lambda: -d,),
    "exp": lambda d, y, a: (lambda: _where_read(d, d * y),),
    "expm1": lambda d, y, a: (lambda: d * (y + 1.0),),
    "log": lambda d, y, a: (lambda: _where_read(d, d / a),),
    "log1p": lambda d, y, a: (lambda: d / (1.0 + a),),
    "sqrt": lambda d, y, a: (lambda: _where_read(d, d * 0.5 / y),),
    "tanh": lambda d, y, a: (lambda: d * (1.0 - y * y),),
    "erf": lambda d, y, a: (lambda: d * (2 / np.sqrt(np.pi) * np.exp(-(a * a))),),
    "sin": lambda d, y, a: (lambda: d * np.cos(a),),
    "cos": lambda d, y, a: (lambda: -d * np.sin(a),),
    "absolute": lambda d, y, a: (lambda: _sign_of(d, a),),
    "maximum": lambda d, y, a, b: _first_larger(d, a, b, True),
    "minimum": lambda d, y, a, b: _first_larger(d, a, b, False),
    "cast": lambda d, y, a: (lambda: d,),
}
"""The adjoint of each input of an elementwise function: by its output y and that one's, d."""
