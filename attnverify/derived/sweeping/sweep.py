"""
The reverse sweep. For a target T and errors at the nodes v behind it, the mean value theorem gives,
with J the derivative of T by v anywhere in the box |x - x0| <= E,

    |T' - T| <= L_T + sum_v sup|J_Tv| L_v + sum_cuts sup|J_Tc| E_c,   sup|J| <= |middle| + radius

What cancels between two uses of a node, cancels of its error alone: that one use reads what was
kept, another what was not rounded yet, counts by the sizes of their derivatives.

Sweeps end at results of products, the *cuts*, where E is taken over. The derivative sees every
cancellation by itself: a norm loses its mean, log-sum-exp minus a logit gives p - 1; a mean by the
weights of a row is centred by :func:`attnverify.derived.budgets.rows.differentiate_row`.

Source of the enclosure: Rump, Verification methods: rigorous results using floating-point
arithmetic, Acta Numerica 2010, sections 9 and 11.
"""

from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
from numpy import ndarray

from attnverify.derived.budgets.keeping import between_uses
from attnverify.derived.budgets.rows import bound_row
from attnverify.derived.budgets.state import Errors
from attnverify.derived.forms import is_linear, is_scale, scaled_input, source_of
from attnverify.derived.row import Row
from attnverify.derived.sweeping.adjoints import Adjoints
from attnverify.derived.sweeping.colours import Group, Labels, batch_labels, groups_of
from attnverify.derived.sweeping.means import (
    errors_of_values,
    lost_on_the_way,
    rounded_weights,
    unit_of_prob,
)
from attnverify.derived.sweeping.products import bound_mean, find_mean
from attnverify.derived.tracing.node import Node

LIMIT = 4e7
"""Numbers that a sweep may touch; above it, the forward pass alone."""

KEPT = 1e5
"""Numbers up to which the colours of a sweep are kept for other arithmetics."""

MOST_NODES = 80
"""Nodes that a sweep passes at most: a recurrence of many steps is left to the forward pass."""

CHUNK = 2_000_000
"""Numbers that are held at once."""


@dataclass
class _Sweep:
    """A target, the nodes that its sweep passes (in reverse order), and where it ends."""

    at: Errors
    target: Node
    nodes: list[Node]
    cuts: list[Node]
    found: ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    rounded_first: ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    rounded_last: ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    @cached_property
    def carrying(self) -> list[Node]:
        """The nodes that have an error of their own to hand on."""
        held = (n for n in self.nodes if n is not self.target)
        return [n for n in held if n in self.operands or self.at.L[n].any()] + self.cuts

    @cached_property
    def operands(self) -> dict[Node, ndarray]:
        """What the factors that a product is swept by lose on their way into it (TF32)."""
        return lost_on_the_way(self.at, self.target)

    @cached_property
    def labels(self) -> Labels:
        return self.colours[0]

    @cached_property
    def colours(self) -> tuple[Labels, dict[Node, Group]]:
        """The batch axes and their places, which what carries an error decides alone."""
        key = (self.target, *self.carrying)
        found = self.at.graph.colours if self.numbers <= KEPT else {}
        if key not in found:
            labels = batch_labels(self.at, self.target, self.nodes, self.carrying)
            rows = [node for node in self.nodes if node in self.at.graph.rows]
            found[key] = labels, groups_of(self.target, labels, [*self.carrying, *rows])
        return found[key]

    @cached_property
    def seed_axes(self) -> list[int]:
        """The axes that one sweep for each of their indices is needed for."""
        shape = self.target.shape
        return [a for a in range(len(shape)) if a not in self.labels and shape[a] > 1]

    @cached_property
    def seeds(self) -> ndarray:
        shape = [self.target.shape[a] for a in self.seed_axes]
        return np.indices(shape).reshape(len(shape), -1).T if shape else np.zeros((1, 0), int)

    @cached_property
    def direct(self) -> tuple[Row, set[Node]] | None:
        """The one row that the target is a mean by, and the nodes behind its exponents."""
        return _direct_row(self)

    @property
    def numbers(self) -> int:
        return sum(node.value.size for node in (*self.nodes, *self.cuts))


def sweep(at: Errors, target: Node) -> ndarray | None:
    """Bound a target by derivatives; None where there is nothing to gain or it is too large."""
    row = at.graph.rows.get(target)
    if row is not None and len(row.axes) == 1:
        return bound_row(at, row)
    if _scales_row(at, target):
        return None
    nodes, cuts = _part_of(at, target)
    if len(nodes) > MOST_NODES or not _meet(at, target, {*nodes, *cuts}):
        return None
    this = _Sweep(at, target, nodes, cuts)
    if not this.carrying:
        return None
    if this.direct is not None:
        row, behind = this.direct
        carrying = [node for node in this.carrying if node not in behind]
        mean = find_mean(at, target, row, carrying)
        if mean is not None:
            return bound_mean(mean, carrying, this.operands, _unit_of_weights(at))
    return _run(this) if len(this.seeds) * this.numbers <= LIMIT else None


def _scales_row(at: Errors, node: Node) -> bool:
    """Tell whether it is a row's weights times a number: as sharp as these are already."""
    while is_scale(node):
        node = source_of(scaled_input(node))
    return node in at.graph.rows and len(at.graph.rows[node].axes) == 1


def _part_of(at: Errors, target: Node) -> tuple[list[Node], list[Node]]:
    """Find the nodes between a target and its cuts."""
    inside, cuts = {target}, dict[Node, None]()
    through = [i for i in target.inputs if at.graph.through(i)]
    stack = list(through if target.kind == "einsum" else target.inputs)
    while stack:
        node = stack.pop()
        if node.kind == "einsum" or (node.kind == "leaf" and at.E[node].any()):
            cuts[node] = None
        elif node.kind != "leaf" and node not in inside:
            inside.add(node)
            stack += node.inputs
    return [node for node in reversed(at.graph.order) if node in inside], list(cuts)


def _meet(at: Errors, target: Node, inside: set[Node]) -> bool:
    """
    Tell whether an error reaches the target on several ways, which may cancel. Where none does, the
    forward pass is as sharp: sup|J| L is what it has added up.
    """
    uses = [
        each
        for node in inside
        for each in (filter(at.graph.through, node.inputs) if node is target else set(node.inputs))
        if each in inside
    ]
    return len(set(uses)) < len(uses)


def _direct_row(this: _Sweep) -> tuple[Row, set[Node]] | None:
    """
    Find the row that a target is linear in, if it is one: what its exponents do to the target is
    known in closed form, and no sweep need go behind them.
    """
    graph, inside = this.at.graph, set(this.nodes)
    rows = [graph.rows[node] for node in this.nodes if node in graph.rows]
    if len(rows) != 1 or (this.target.kind != "einsum" and this.target is not rows[0].quotient):
        return None
    (row,) = rows
    if any(user not in (row.quotient, row.total) for user in graph.users[row.exponential]):
        return None
    node = row.quotient
    while node is not this.target:
        users = [user for user in graph.users[node] if user in inside]
        if len(users) != 1 or not (users[0] is this.target or _is_linear_in(users[0])):
            return None
        node = users[0]
    return row, _behind(row.exponential)


def _is_linear_in(node: Node) -> bool:
    by_constant = node.name == "multiply" and any(each.const for each in node.inputs)
    return is_linear(node) or by_constant


def _behind(node: Node) -> set[Node]:
    found, stack = {node}, [node]
    while stack:
        for each in stack.pop().inputs:
            if each not in found:
                found.add(each)
                stack += [] if each.kind == "einsum" else [each]
    return found


def _run(this: _Sweep) -> ndarray:
    at, target, direct = this.at, this.target, this.direct
    groups = this.colours[1]
    batches = prod(target.shape[a] for a in this.labels)
    shape = (len(this.seeds), batches)
    this.found, this.rounded_first, this.rounded_last = (np.zeros(shape) for _ in range(3))
    nodes, carrying = this.nodes, this.carrying
    if direct is not None:
        row, behind = direct
        nodes = [node for node in nodes if node not in behind]
        lost = at.under[row.exponential].any()
        carrying = [n for n in carrying if n not in behind or (n is row.exponential and lost)]
    chunk = max(1, CHUNK // this.numbers)
    for start in range(0, len(this.seeds), chunk):
        part = slice(start, start + chunk)
        adjoints = Adjoints(at, target, this.seed_axes, this.seeds[part])
        adjoints.run(nodes)
        _collect(this, adjoints, carrying, groups, part)
    # weights are rounded before or after they are summed: the larger counts, the first is in
    this.found += np.maximum(this.rounded_last - this.rounded_first, 0.0)
    return _in_shape(this)


def _collect(
    this: _Sweep,
    adjoints: Adjoints,
    carrying: list[Node],
    groups: dict[Node, Group],
    part: slice,
) -> None:
    """Add what every node hands on to the target, in one chunk of seeds."""
    at, direct, found = this.at, this.direct, this.found[part]
    is_product, u = this.target.kind == "einsum", _unit_of_weights(at)
    if direct is not None:
        centred, group = adjoints.rows[direct[0].quotient], groups[direct[0].quotient]
        group.add(found, centred.displacement)
        if is_product:
            group.add(this.rounded_last[part], u * centred.weighted)
    for node in carrying:
        if node not in adjoints.middle:
            continue
        J, own, group = adjoints.size(node), _own_error(this, node), groups[node]
        if (lossy := own > 0).any():
            group.add(found, J * own if lossy.all() else np.where(lossy, J * own, 0.0))
        if node in adjoints.apart and node.kind != "leaf":
            differ = between_uses(at, node)
            if (differ > 0).any():
                cancelled = np.maximum(adjoints.apart[node] - J, 0.0)
                group.add(found, np.where(differ > 0, cancelled * differ, 0.0))
        if direct is None and is_product and node.name == "exp":
            group.add(this.rounded_last[part], J * (u * node.value))
        elif is_product and (first := rounded_weights(at, node, this.operands)).any():
            group.add(this.rounded_first[part], J * first)


def _unit_of_weights(at: Errors) -> float:
    P = at.P
    u = P.operand.u if P.operand and P.operand.p < P.prob.p else 0.0
    return u + unit_of_prob(P)


def _own_error(this: _Sweep, node: Node) -> ndarray:
    at, direct = this.at, this.direct
    if direct is not None and node is direct[0].exponential:
        return at.under[node]
    if node in at.graph.totals:
        return at.relative[node]
    return at.E[node] if node in this.cuts else at.L[node] + this.operands.get(node, 0.0)


def _in_shape(this: _Sweep) -> ndarray:
    """Give what was found for seeds and batches the shape of the target."""
    target, at = this.target, this.at
    order = [*this.seed_axes, *this.labels]
    rest = [a for a in range(len(target.shape)) if a not in order]
    sizes = [target.shape[a] for a in order] + [1] * len(rest)
    E = this.found.reshape(sizes).transpose(np.argsort([*order, *rest]))
    if target.kind == "einsum":
        E = E + errors_of_values(at, target)
    if target in at.graph.rows:
        e = at.graph.rows[target].exponential
        E = np.where((e.value <= 1e-290) & (e.inputs[0].value > -np.inf), np.inf, E)
    return np.where(np.isnan(E), np.inf, E)
