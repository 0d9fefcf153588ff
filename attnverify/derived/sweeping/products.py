"""
A mean of values by the weights of one row, o = sum_j p_j f_j v_j: what a sweep would add up seed
by seed, in closed form.

What is centred, sum_j a_j |f_j v_j - o|, is added up term by term where the terms are few, and is
no product of matrices; where they are many, by Cauchy and Schwarz, it is at most

    sqrt(sum a) sqrt(sum a f^2 v^2 - 2 o sum a f v + o^2 sum a)

whose second factor cancels: it is taken around the mean of the values where f is 1, and what
float64 may have lost is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy import ndarray

from attnverify.derived.budgets.rows import Reach, normaliser_loss, rest_of, row_errors
from attnverify.derived.budgets.state import Errors
from attnverify.derived.budgets.sums import operand
from attnverify.derived.forms import factor_of, is_scale
from attnverify.derived.row import Row
from attnverify.derived.sweeping.means import errors_of_values, rounded_weights
from attnverify.derived.tracing.node import Node, product

FEW = 2e6
"""Terms of a mean that are added up one by one."""

ROUNDED = 4e-16
"""What float64 loses of each term of a square that cancels."""


@dataclass(frozen=True)
class Mean:
    """
    steps   the nodes from the weights to the factor of the product, and what comes behind each
            of them: the f that remains
    side    the nodes between the normaliser and the sum in it
    place   which factor of the product the weights are
    """

    at: Errors
    target: Node
    row: Row
    steps: dict[Node, ndarray]
    side: set[Node]
    place: int

    @property
    def letters(self) -> tuple[str, str, str]:
        a, b, out = self.target.spec
        return (a, b, out) if self.place == 0 else (b, a, out)

    @property
    def values(self) -> Node:
        return self.target.inputs[1 - self.place]

    @cached_property
    def E(self) -> ndarray:
        """The errors of the values, on their way into the product."""
        return operand(self.at, self.values)

    def sum(self, weights: ndarray, x: ndarray) -> ndarray:
        """Sum over the keys weights times what belongs to the values."""
        own, other, out = self.letters
        shape = self.target.inputs[self.place].shape
        return product(f"{own},{other}->{out}", weights.reshape(shape), x)

    def sum_of_all(self, weights: Sequence[ndarray], x: ndarray) -> ndarray:
        """The same of several weights, added up before."""
        shape = self.target.inputs[self.place].shape
        return self.sum(sum((each.reshape(shape) for each in weights), np.zeros(shape)), x)

    def spread(self, x: ndarray) -> ndarray:
        """Give a number for each row, or the values' for each column, the axes of the target."""
        own, _, out = self.letters
        kept = [c for c in out if c in own]
        x = x.reshape(self.target.inputs[self.place].shape[:-1])
        x = x.transpose([own.index(c) for c in kept])
        return np.asarray(x[tuple(slice(None) if c in kept else None for c in out)])

    def largest(self, x: ndarray) -> ndarray:
        """Find the largest of the values of each column."""
        own, other, out = self.letters
        most, left = x.max(other.index(own[-1])), other.replace(own[-1], "")
        most = most.transpose([left.index(c) for c in out if c in left])
        return np.asarray(most[tuple(slice(None) if c in left else None for c in out)])

    def by_terms(self, x: ndarray, letters: str) -> ndarray:
        """Give numbers of weights or values the axes of the target, and one for what is summed."""
        own, _, out = self.letters
        x = x.reshape(self.target.inputs[self.place].shape) if letters == own else x
        whole = out + own[-1]
        x = x.transpose([letters.index(c) for c in whole if c in letters])
        return np.asarray(x[tuple(slice(None) if c in letters else None for c in whole)])

    def apart(self, weights: ndarray, f: ndarray) -> ndarray:
        """Bound sum_j weights_j |f_j v_j - o|: term by term where the terms are few."""
        own, other, _ = self.letters
        v, o, axis = self.values.value, self.target.value, other.index(own[-1])
        if o.size * v.shape[axis] <= FEW:
            centred = (
                self.by_terms(v, other)
                if (f == 1).all()
                else self.by_terms(f, own) * self.by_terms(v, other)
            )
            return (self.by_terms(weights, own) * np.abs(centred - o[..., None])).sum(-1)
        whole = self.spread(weights.sum(-1, keepdims=True))
        if (f == 1).all():
            centre = v.mean(axis, keepdims=True)
            v, o = v - centre, o - self.largest(centre)
        second = self.sum(weights * f * f, v * v)
        square = second - 2 * o * self.sum(weights * f, v) + o * o * whole
        lost = ROUNDED * (v.shape[axis] + 4) * (second + o * o * whole)
        return np.sqrt(whole) * np.sqrt(np.maximum(square, 0.0) + lost)


def find_mean(at: Errors, target: Node, row: Row, carrying: Sequence[Node]) -> Mean | None:
    """Recognise a mean by the weights of one row; None where something else is on the way."""
    if target.kind != "einsum" or row.axes != (row.quotient.value.ndim - 1,):
        return None
    places = [k for k, each in enumerate(target.inputs) if at.graph.through(each)]
    steps = _steps(target.inputs[places[0]], row.quotient) if len(places) == 1 else None
    if steps is None:
        return None
    mean = Mean(at, target, row, steps, _side(row), places[0])
    (own, other, out), known = mean.letters, {*steps, *mean.side}
    by_row = set(own) - set(out) == set(other) - set(out) == set(own[-1:])
    finite = np.isfinite(mean.values.value).all()
    return mean if by_row and finite and all(node in known for node in carrying) else None


def _steps(node: Node, quotient: Node) -> dict[Node, ndarray] | None:
    """Walk from the product to the weights, multiplying what the nodes on the way multiply by."""
    length, f, found = quotient.shape[-1:], np.ones(node.shape), dict[Node, ndarray]()
    while True:
        found[node] = f
        if node is quotient:
            return found
        real = [each for each in node.inputs if not each.const]
        if len(real) != 1 or real[0].value.size != node.value.size or node.shape[-1:] != length:
            return None
        factor = _factor(node, real[0])
        if factor is None:
            return None
        f, node = (f * factor).reshape(real[0].shape), real[0]


def _factor(node: Node, inner: Node) -> ndarray | float | None:
    if node.kind == "move":
        in_place = (node.index.ravel() == np.arange(node.value.size)).all()
        return 1.0 if in_place and inner.shape[-1:] == node.shape[-1:] else None
    if node.kind == "select":
        first = node.inputs[0] is inner
        other = node.inputs[first * 1]
        chosen = np.where(node.condition == first, 1.0, 0.0)
        return chosen if not other.value.any() and not node.margins else None
    if node.name == "negative":
        return -1.0
    if is_scale(node):
        return factor_of(node)
    return None


def _side(row: Row) -> set[Node]:
    found, stack = {row.total}, [row.quotient.inputs[1]]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            if node.kind in ("move", "select") or node.name == "add":
                stack += [each for each in node.inputs if not each.const]
    return found


def bound_mean(
    mean: Mean, carrying: Sequence[Node], operands: dict[Node, ndarray], u: float
) -> ndarray:
    """
    Bound the target as the sweep does (:mod:`attnverify.derived.sweeping.sweep`): what moves the
    exponents, the weights' own errors, the normaliser's, and rounded weights; u: of `prob`
    and of operands.
    """
    at, row, v = mean.at, mean.row, mean.values
    p, f, e = row.quotient.value, mean.steps[row.quotient], row.exponential
    off, rest, size, Ev = row_errors(at, row), rest_of(row), np.abs(f), mean.E
    reach, c = Reach.of(row, off.r), np.abs(mean.target.value)
    up, floor, top, worst = reach.up, reach.floor, reach.top, off.r.max(-1, keepdims=True)
    wide = mean.sum(up * size, Ev) if Ev.any() else 0.0
    shift = (mean.apart(up - p, f) + wide) / mean.spread(floor)
    shift = shift + mean.spread(rest * np.expm1(worst)) * c
    most = mean.largest(np.abs(v.value) + 2 * Ev) * size.max(initial=0.0) + c
    moved = np.fmin(np.where(mean.spread(off.risky), np.inf, shift), most)
    loss = normaliser_loss(at, row, reach)
    found = moved + mean.spread(loss) * c
    found = found + mean.sum(loss * top * size, Ev) if Ev.any() else found
    if at.under[e].any():
        seen = off.seen & (at.under[e] > 0)
        w = np.where(seen, top * at.under[e] / np.where(seen, e.value, 1.0), 0.0)
        found = np.where(mean.spread((seen & off.risky).any(-1, keepdims=True)), np.inf, found)
        gone = mean.sum(w * size, Ev) + np.fmin(shift, most) * mean.spread(w.sum(-1, keepdims=True))
        found = found + mean.apart(w, f) + gone
    off_by = np.minimum(at.E[row.quotient], reach.moved(p))
    steps, values = [node for node in mean.steps if node in carrying], np.abs(v.value) + Ev
    own = [(at.L[n] + operands.get(n, 0.0)) * np.abs(mean.steps[n]) for n in steps]
    found = found + mean.sum_of_all([loss * off_by * size, *own], values)
    if u:
        first = [rounded_weights(at, n, operands) * np.abs(mean.steps[n]) for n in steps]
        found = found + np.maximum(u * mean.apart(p, f) - mean.sum_of_all(first, values), 0.0)
    found = found + errors_of_values(at, mean.target)
    return np.where(np.isnan(found), np.inf, found)
