"""Adjoints: derivatives of the seeded elements of a target by every node, middle and radius."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy import ndarray

from attnverify.derived.budgets.elementwise import undecided
from attnverify.derived.budgets.rows import Centred, differentiate_row
from attnverify.derived.budgets.state import Errors
from attnverify.derived.budgets.sums import operand
from attnverify.derived.sweeping.slopes import Part, slopes
from attnverify.derived.tracing.node import Node, product
from attnverify.derived.tracing.sums import LETTERS


class Adjoints:
    """
    The adjoints of one chunk of seeds; all arrays have a leading axis of seeds.

    rows   what each normalised row on the way was found to do
    apart  of what is used more than once: the sizes of what arrives by each use, added up
    """

    def __init__(self, at: Errors, target: Node, axes: Sequence[int], seeds: ndarray) -> None:
        self.at, self.target, self.axes, self.seeds = at, target, axes, seeds
        seed = np.zeros((len(seeds), *target.shape))
        for row, indices in enumerate(seeds):
            place: list[int | slice] = [slice(None)] * len(target.shape)
            for axis, index in zip(axes, indices, strict=True):
                place[axis] = int(index)
            seed[(row, *place)] = 1.0
        self.middle = {target: seed}
        self.radius = {target: np.zeros_like(seed)}
        self.apart: dict[Node, ndarray] = {}
        self.rows: dict[Node, Centred] = {}
        self.stopped: set[Node] = set()

    def run(self, nodes: Sequence[Node]) -> None:
        """Visit the nodes in reverse order."""
        for node in nodes:
            if node in self.middle and node not in self.stopped:
                if node in self.at.graph.rows:
                    self._row(node)
                else:
                    _BACK[node.kind](self, node)

    def give(
        self, node: Node, middle: ndarray, radius: ndarray, apart: ndarray | None = None
    ) -> None:
        if self.at.is_exact(node):
            return
        middle, radius = _fold(middle, node.shape), _fold(radius, node.shape)
        if apart is not None or node in self.middle:
            apart = np.abs(middle) + radius if apart is None else _fold(apart, node.shape)
            if node in self.middle:
                apart = apart + self.size_apart(node)
            self.apart[node] = apart
        if node in self.middle:
            middle, radius = self.middle[node] + middle, self.radius[node] + radius
        self.middle[node], self.radius[node] = middle, radius

    def size(self, node: Node) -> ndarray:
        return np.asarray(np.abs(self.middle[node]) + self.radius[node])

    def size_apart(self, node: Node) -> ndarray:
        """The sizes of the derivatives by each use of a node, which may cancel in their sum."""
        return self.apart[node] if node in self.apart else self.size(node)

    def _row(self, node: Node) -> None:
        row = self.at.graph.rows[node]
        found = differentiate_row(self.at, row, self.middle[node], self.radius[node])
        self.give(row.exponential, *found.by_exponential)
        self.give(node.inputs[1], *found.by_normaliser)
        self.rows[node] = found
        self.stopped.add(row.total)  # what its terms do was said by the row

    def elementwise(self, node: Node) -> None:
        gm, gr = self.middle[node], self.radius[node]
        for each, middle, radius in slopes(self.at, node):
            if not self.at.is_exact(each):
                self.give(each, *by_slope(gm, gr, middle, radius))

    def select(self, node: Node) -> None:
        gm, gr = self.middle[node], self.radius[node]
        open_, apart = undecided(self.at, node), self.apart.get(node)
        otherwise = np.where(open_, np.abs(gm) + gr, 0.0) if np.any(open_) else 0.0
        for each, chosen in zip(node.inputs, (node.condition, ~node.condition), strict=True):
            radius = np.where(chosen, gr, otherwise)
            each_apart = None if apart is None else np.where(chosen | open_, apart, 0.0)
            self.give(each, np.where(chosen, gm, 0.0), radius, each_apart)

    def sum(self, node: Node) -> None:
        (each,), lead = node.inputs, len(self.middle[node])
        shape = (lead, *each.shape)
        middle, radius = self.middle[node], self.radius[node]
        self.give(each, np.broadcast_to(middle, shape), np.broadcast_to(radius, shape))

    def max(self, node: Node) -> None:
        (each,), gm, gr = node.inputs, self.middle[node], self.radius[node]
        x, E = each.value, self.at.E[each]
        hit = x == node.value
        first = hit / np.maximum(hit.sum(node.axes, keepdims=True), 1)
        may = (x + E >= node.value - E.max(node.axes, keepdims=True)) * 1.0
        self.give(each, gm * first, np.abs(gm) * may + gr * np.maximum(may, first))

    def move(self, node: Node) -> None:
        start, flat = 0, node.index.ravel()
        for each in node.inputs:
            size = each.value.size
            if not self.at.is_exact(each):
                mine = np.flatnonzero((flat >= start) & (flat < start + size))
                to = flat[mine] - start
                parts = [self.middle[node], self.radius[node]]
                parts += [self.apart[node]] if node in self.apart else []
                self.give(each, *(_scatter(g, mine, to, each.shape) for g in parts))
            start += size

    def einsum(self, node: Node) -> None:
        for place, each in enumerate(node.inputs):
            if self.at.graph.through(each):
                self.give(each, *self._through_product(node, place))

    def _through_product(self, node: Node, place: int) -> tuple[ndarray, ndarray]:
        (a, b, out), other = node.spec, node.inputs[1 - place]
        own, others = ((a, b), (b, a))[place]
        seed = next(c for c in LETTERS if c not in a + b + out)
        spec = f"{seed}{out},{others}->{seed}{own}"
        E, gr = operand(self.at, other), self.radius[node]
        if node is self.target and self._picks_columns(own, others, out):
            return self._columns(node, place, other.value), self._columns(node, place, E)
        gm, value = self.middle[node], other.value
        middle = product(spec, gm, value)
        radius = np.zeros_like(middle)
        if E.any():
            radius = radius + product(spec, np.abs(gm), E)
        if gr.any():
            radius = radius + product(spec, gr, self.at.value_size(other) + E)
        return middle, radius

    def _picks_columns(self, own: str, others: str, out: str) -> bool:
        """Tell whether every seed is one index of an axis that the other factor alone has."""
        letters = [out[axis] for axis in self.axes]
        return (
            bool(letters)
            and all(c in others and c not in own for c in letters)
            and all(c in own or c in letters for c in others)
            and all(c in others or c in out for c in own)
        )

    def _columns(self, node: Node, place: int, x: ndarray) -> ndarray:
        (a, b, out), shape = node.spec, node.inputs[place].shape
        own, others = ((a, b), (b, a))[place]
        letters = [out[axis] for axis in self.axes]
        kept = [c for c in others if c not in letters]
        order = sorted(range(len(kept)), key=lambda i: own.index(kept[i]))
        broadcast = tuple(slice(None) if c in kept else None for c in own)
        found = []
        for seed in self.seeds:
            index = dict(zip(letters, seed, strict=True))
            column = x[tuple(int(index[c]) if c in index else slice(None) for c in others)]
            found.append(np.broadcast_to(column.transpose(order)[broadcast], shape))
        return np.stack(found)


_BACK: dict[str, Callable[[Adjoints, Node], None]] = {
    "ew": Adjoints.elementwise,
    "select": Adjoints.select,
    "sum": Adjoints.sum,
    "max": Adjoints.max,
    "move": Adjoints.move,
    "einsum": Adjoints.einsum,
}


def by_slope(gm: ndarray, gr: ndarray, middle: Part, radius: Part) -> tuple[ndarray, ndarray]:
    """Multiply an adjoint by a slope; nothing times an infinite slope is nothing."""
    m, r = gm * middle, gr * (np.abs(middle) + radius)
    if np.any(radius):
        r = r + np.abs(gm) * radius
    if np.isfinite(middle).all() and np.isfinite(radius).all():
        return m, r
    dead = (gm == 0) & (gr == 0)
    return np.where(dead, 0.0, m), np.where(dead, 0.0, r)


def _fold(g: ndarray, shape: tuple[int, ...]) -> ndarray:
    """Sum what was broadcast, behind the axis of seeds."""
    lead = g.ndim - 1 - len(shape)
    g = g.sum(tuple(range(1, 1 + lead))) if lead else g
    axes = tuple(i + 1 for i, n in enumerate(shape) if n == 1 and g.shape[i + 1] != 1)
    return g.sum(axes, keepdims=True) if axes else g


def _scatter(g: ndarray, mine: ndarray, to: ndarray, shape: tuple[int, ...]) -> ndarray:
    """Give every element the sum of the adjoints of what was read from it."""
    back = np.zeros((len(g), int(np.prod(shape))))
    taken = g.reshape(len(g), -1)[:, mine]
    if np.bincount(to, minlength=1).max(initial=0) <= 1:
        back[:, to] = taken
    else:
        for row, part in zip(back, taken, strict=True):
            np.add.at(row, to, part)
    return back.reshape(len(g), *shape)
