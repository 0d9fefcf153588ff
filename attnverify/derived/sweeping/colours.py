"""
Colours: how many sweeps a target needs. An axis of the target is *batch* where no node with an
error reaches two of its indices; then one sweep serves all of them. That is found by sending the
indices backwards through the graph, as the least and the largest that reach each element; an axis
along which they are the same has one place.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from attnverify.derived.budgets.state import Errors
from attnverify.derived.tracing.node import Node

Labels = dict[int, dict[Node, ndarray]]


class Group(NamedTuple):
    """
    For every element of a node, flat, the combination of batch indices that it is of; where those
    of each lie one after the other, as nearly always, also at which elements they begin.
    """

    batch: ndarray
    starts: ndarray | None

    def add(self, found: ndarray, weight: ndarray) -> None:
        """Add up what belongs to each batch, seed by seed."""
        flat = weight.reshape(len(weight), -1)
        if self.starts is not None:
            found[:, self.batch[self.starts]] += np.add.reduceat(flat, self.starts, axis=1)
            return
        for row, each in zip(found, flat, strict=True):
            row += np.bincount(self.batch, weights=each, minlength=len(row))


def batch_labels(
    at: Errors, target: Node, nodes: Sequence[Node], carrying: Sequence[Node]
) -> Labels:
    """For each batch axis of the target: to which of its indices every element belongs."""
    found: Labels = {}
    for axis, size in enumerate(target.shape):
        shape = [1] * len(target.shape)
        shape[axis] = size
        seed = np.arange(size, dtype=np.int32).reshape(shape)
        if size > 1:
            low, high = _send_back(at, target, nodes, seed)
            if all((low[n] >= high[n]).all() for n in carrying if n in low):
                found[axis] = low
    return found


def groups_of(target: Node, labels: Labels, nodes: Sequence[Node]) -> dict[Node, Group]:
    """Find, for every element of these nodes, the combination of batch indices that it is of."""
    found = {}
    for node in nodes:
        index = np.zeros(node.shape, np.int64)
        for axis, low in labels.items():
            own = low.get(node, np.zeros(node.shape, np.int64))
            index = index * target.shape[axis] + np.minimum(own, target.shape[axis] - 1)
        flat = index.ravel()
        starts = np.flatnonzero(np.diff(flat, prepend=-1))
        whole = bool(len(starts)) and bool((np.diff(flat[starts]) > 0).all())
        found[node] = Group(flat, starts if whole else None)
    return found


class _Extremes:
    def __init__(self, target: Node, seed: ndarray) -> None:
        self.low, self.high = {target: seed}, {target: seed}

    def give(self, node: Node, low: ndarray, high: ndarray) -> None:
        if node in self.low:
            low, high = np.minimum(self.low[node], low), np.maximum(self.high[node], high)
        self.low[node], self.high[node] = low, high


def _send_back(
    at: Errors, target: Node, nodes: Sequence[Node], seed: ndarray
) -> tuple[dict[Node, ndarray], dict[Node, ndarray]]:
    found = _Extremes(target, seed)
    for node in nodes:
        if node in found.low:
            _BACK[node.kind](at, node, found)
    return found.low, found.high


def _back_elementwise(at: Errors, node: Node, found: _Extremes) -> None:
    low, high = found.low[node], found.high[node]
    for each in node.inputs:
        if not at.is_exact(each):
            least = _shrink(low, each.shape, np.minimum)
            found.give(each, least, _shrink(high, each.shape, np.maximum))


def _back_reduced(at: Errors, node: Node, found: _Extremes) -> None:
    (each,) = node.inputs
    found.give(each, found.low[node], found.high[node])


def _back_moved(at: Errors, node: Node, found: _Extremes) -> None:
    start, flat = 0, node.index.ravel()
    low, high = (np.broadcast_to(x[node], node.shape).ravel() for x in (found.low, found.high))
    for each in node.inputs:
        size = each.value.size
        mine = (flat >= start) & (flat < start + size)
        if not at.is_exact(each):
            least, most = np.full(size, 2**30, np.int32), np.full(size, -1, np.int32)
            np.minimum.at(least, flat[mine] - start, low[mine])
            np.maximum.at(most, flat[mine] - start, high[mine])
            found.give(each, least.reshape(each.shape), most.reshape(each.shape))
        start += size


def _back_product(at: Errors, node: Node, found: _Extremes) -> None:
    a, b, out = node.spec
    for own, each in zip((a, b), node.inputs, strict=True):
        if at.graph.through(each):
            low = _onto_letters(found.low[node], out, own, np.minimum)
            found.give(each, low, _onto_letters(found.high[node], out, own, np.maximum))


def _onto_letters(x: ndarray, out: str, own: str, by: Any) -> ndarray:
    gone = tuple(j for j, c in enumerate(out) if c not in own)
    kept = [c for c in out if c in own]
    x = (by.reduce(x, gone) if gone else x).transpose([kept.index(c) for c in own if c in kept])
    return np.asarray(x[tuple(slice(None) if c in kept else None for c in own)])


_BACK: dict[str, Callable[[Errors, Node, _Extremes], None]] = {
    "ew": _back_elementwise,
    "select": _back_elementwise,
    "sum": _back_reduced,
    "max": _back_reduced,
    "move": _back_moved,
    "einsum": _back_product,
}


def _shrink(x: ndarray, shape: tuple[int, ...], by: Any) -> ndarray:
    if x.shape == shape:
        return x
    lead = x.ndim - len(shape)
    x = by.reduce(x, tuple(range(lead))) if lead else x
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and x.shape[i] != 1)
    return np.asarray(by.reduce(x, axes, keepdims=True)) if axes else x
