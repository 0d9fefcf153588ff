"""
What a traced graph is under every arithmetic: users, regions between products, normalised rows, and
the terms that a sum consists of.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.derived.forms import (
    LINEAR,
    chosen_alone,
    factor_of,
    follows_mean,
    goes_on,
    is_linear,
    is_scale,
    is_sum,
    scaled_input,
    source_of,
)
from attnverify.derived.row import Row, exponentials_of, find_row
from attnverify.derived.tracing.node import Node, product, topological

MOST_TERMS = 6
"""Terms of a sum that are looked at in every order; with more, its value alone."""


class Graph:
    """
    A graph of some outputs, and of what was decided by values; ``backward`` where it is a
    gradient's, ``cut`` where a product is bounded by the errors of its factors, if these were
    swept: a bound that is a few times as large at worst, for a fourth of the time.
    """

    def __init__(
        self,
        outputs: Sequence[Node],
        backward: bool = False,
        decided: Sequence[Node] = (),
        cut: bool = False,
    ) -> None:
        self.outputs, self.backward, self.cut = list(outputs), backward, cut
        self.order = topological([*outputs, *decided])
        self.main = topological(outputs, margins=False)
        self.ends = set(outputs)
        self.colours: dict[tuple[Node, ...], Any] = {}  # of sweeps, the same in every arithmetic
        self.users: dict[Node, list[Node]] = {node: [] for node in self.order}
        for node in self.main:
            for each in node.inputs:
                self.users[each].append(node)

    # regions: what is connected without passing a product

    @cached_property
    def _regions(self) -> dict[Node, list[Node]]:
        """Find for every node the nodes of its region, by joining neighbours."""
        parent = {node: node for node in self.order}

        def find(node: Node) -> Node:
            while parent[node] is not node:
                parent[node] = node = parent[parent[node]]
            return node

        for node in self.order:
            for each in node.inputs if node.kind != "einsum" else ():
                if each.kind != "leaf":
                    parent[find(each)] = find(node)
        members: dict[Node, list[Node]] = {}
        for node in self.order:
            members.setdefault(find(node), []).append(node)
        return {node: region for region in members.values() for node in region}

    @cached_property
    def _region_names(self) -> dict[int, frozenset[str]]:
        regions = {id(region): region for region in self._regions.values()}
        return {key: frozenset(node.name for node in r) for key, r in regions.items()}

    def region_names(self, node: Node) -> frozenset[str]:
        """List the functions in the region of a node."""
        return self._region_names[id(self._regions[node])]

    def row_length(self, node: Node) -> int:
        """Find the longest sum in the region of a node."""
        return self._row_lengths.get(id(self._regions[node]), 1)

    @cached_property
    def _row_lengths(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for node in self.order:
            if node.kind == "sum":
                length = prod(node.inputs[0].shape[a] for a in node.axes)
                region = id(self._regions[node])
                found[region] = max(found.get(region, 1), length)
        return found

    def has_row(self, node: Node) -> bool:
        """Tell whether a normalised row is in the region of a node."""
        return id(self._regions[node]) in self._regions_with_rows

    @cached_property
    def _regions_with_rows(self) -> set[int]:
        return {id(self._regions[row]) for row in self.rows}

    @cached_property
    def has_exponentials(self) -> bool:
        return any(node.name == "exp" for node in self.order)

    @cached_property
    def multiplied(self) -> set[Node]:
        """Find the nodes that are a factor of some product, behind moves."""
        found = set()
        for node in self.order:
            for each in node.inputs if node.kind == "einsum" else ():
                found.add(source_of(each))
                found |= {source_of(one) for one in each.inputs} if each.kind == "move" else set()
        return found

    @cached_property
    def before_exponential(self) -> set[Node]:
        """Find the nodes whose value reaches an exponential without passing a product."""
        found: set[Node] = set()
        for node in reversed(self.order):
            users = (user for user in self.users[node] if user.kind != "einsum")
            if any(user.name == "exp" or user in found for user in users):
                found.add(node)
        return found

    @cached_property
    def exponents(self) -> set[Node]:
        """Find the differences s - m that an exponential is taken of."""
        given = (node.inputs[0] for node in self.order if node.name == "exp")
        return {node for node in given if node.name == "subtract"}

    # normalised rows

    @cached_property
    def rows(self) -> dict[Node, Row]:
        found = (
            find_row(self.users_behind_moves, node) for node in self.order if node.name == "divide"
        )
        return {row.quotient: row for row in found if row}

    @cached_property
    def totals(self) -> set[Node]:
        return {row.total for row in self.rows.values()}

    @cached_property
    def shifted(self) -> set[Node]:
        """Find the exponents of rows from which a shift is taken that has no derivative."""
        return {
            node.inputs[0]
            for row in self.rows.values()
            if row.shifted
            for node in exponentials_of(row)
        }

    # sums and their terms

    def joined(self, node: Node) -> bool:
        """Tell whether it is a sum of inputs (or results of products): q + u."""
        return self._joined[source_of(node)]

    @cached_property
    def _joined(self) -> dict[Node, bool]:
        found: dict[Node, bool] = {}
        for node in self.order:
            sources = [source_of(each) for each in node.inputs]
            found[node] = node.name in ("add", "subtract") and all(
                each.kind in ("leaf", "einsum") or found[each] for each in sources
            )
        return found

    def users_behind_moves(self, node: Node) -> Iterator[Node | None]:
        """Yield those who use it, also moved; None where it is a result."""
        stack = [node]
        while stack:
            each = stack.pop()
            if each in self.ends:
                yield None
            for user in self.users[each]:
                if user.kind in ("move", "select"):
                    stack.append(user)
                else:
                    yield user

    def is_root(self, node: Node) -> bool:
        """
        Tell whether it is the last node of a chain of additions and scalings, or of what is looked
        at together of a longer one.
        """
        if node in self.exponents or not is_sum(node):
            return False
        users = list(self.users_behind_moves(node))
        ends = (
            u is None or u in self.exponents or not goes_on(u) or self._is_cut(u) for u in users
        )
        return not users or any(ends)

    def _is_cut(self, node: Node) -> bool:
        """Tell whether a sum has more terms than are looked at: its value alone."""
        if node.name not in ("add", "subtract"):
            return False
        return sum(len(self.terms(each)) for each in node.inputs) > MOST_TERMS

    def root_has_many(self, node: Node) -> bool:
        """Tell whether every sum that it is part of has more than two terms."""
        return self._root_has_many[node]

    @cached_property
    def _root_has_many(self) -> dict[Node, bool]:
        found: dict[Node, bool] = {}
        for node in reversed(self.order):
            users = [user for user in self.users[node] if is_linear(user)]
            many = [len(self.terms(user)) > 2 or found[user] for user in users]
            found[node] = bool(many) and all(many)
        return found

    def terms(self, node: Node) -> list[ndarray]:
        """Find the parts of a sum, products of sums multiplied out, in the shape of the sum."""
        return self._terms[node]

    @cached_property
    def _terms(self) -> dict[Node, list[ndarray]]:
        self._found_terms: dict[Node, list[ndarray]] = {}
        for node in self.order:
            parts = None if node in self.exponents else self._find_terms(node)
            self._found_terms[node] = parts or [node.value]
        return self._found_terms

    def _find_terms(self, node: Node) -> list[ndarray] | None:
        if node.kind == "ew" and node.name in LINEAR:
            return self._terms_of_sum(node)
        if is_scale(node):
            parts = self._found_terms[scaled_input(node)]
            return [np.broadcast_to(t * factor_of(node), node.shape) for t in parts]
        if node.kind == "move" and len(node.inputs) == 1:
            inner = self._found_terms[node.inputs[0]]
            return [np.append(t.ravel(), 0.0)[node.index] for t in inner]
        if chosen := chosen_alone(node):
            return [np.where(chosen[1], t, 0.0) for t in self._found_terms[chosen[0]]]
        return self._terms_of_product(node) if node.kind == "einsum" else None

    def _terms_of_sum(self, node: Node) -> list[ndarray] | None:
        if node.name == "negative":
            return [-t for t in self._found_terms[node.inputs[0]]]
        sign = -1.0 if node.name == "subtract" else 1.0
        first, second = (self._found_terms[each] for each in node.inputs)
        if len(first) + len(second) > MOST_TERMS:
            return None
        signed = [*first, *(sign * t for t in second)]
        return [np.broadcast_to(t, node.shape) for t in signed]

    def _terms_of_product(self, node: Node) -> list[ndarray] | None:
        (a, b), (x, y, out) = node.inputs, node.spec
        if self.joined(a) == self.joined(b):
            return None
        pairs = (
            [(t, b.value) for t in self._found_terms[a]]
            if self.joined(a)
            else [(a.value, t) for t in self._found_terms[b]]
        )
        return [product(f"{x},{y}->{out}", s, t) for s, t in pairs]

    def is_last(self, node: Node) -> bool:
        """Tell whether only sums and moves come between a node and the result."""
        return self._last[node]

    @cached_property
    def _last(self) -> dict[Node, bool]:
        found: dict[Node, bool] = {}
        for node in reversed(self.order):
            users = self.users[node]
            found[node] = all(
                (is_linear(user) or user.kind == "sum") and found[user] for user in users
            )
        return found

    def of_products(self, node: Node) -> bool:
        """Tell whether it is a sum of products, of what is added to them, and moved."""
        return self._of_products[node]

    @cached_property
    def _of_products(self) -> dict[Node, bool]:
        found: dict[Node, bool] = {}
        for node in self.order:
            inner = any(found[each] for each in node.inputs)
            summed = is_linear(node) and not follows_mean(node) and inner
            found[node] = node.kind == "einsum" or summed
        return found

    def through(self, factor: Node) -> bool:
        """Tell whether a sweep goes on through this factor: nonlinear steps made it."""
        factor = source_of(factor)
        inner = factor.kind not in ("leaf", "einsum") and "exp" in self.region_names(factor)
        return inner and not self.joined(factor)
