"""
The forward pass: every node is enclosed, |computed - exact| <= E, by absolute values; where paths
part and meet again the reverse sweep makes that sharp.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy import ndarray

from attnverify.derived.budgets.elementwise import (
    bound_elementwise,
    bound_leaf,
    bound_max,
    bound_move,
    bound_select,
)
from attnverify.derived.budgets.roles import also_kept, stored
from attnverify.derived.budgets.state import Errors
from attnverify.derived.budgets.sums import Rule, bound_product, bound_sum
from attnverify.derived.forms import is_scale, source_of
from attnverify.derived.graph import Graph
from attnverify.derived.sweeping.means import unit_of_prob
from attnverify.derived.sweeping.sweep import sweep
from attnverify.derived.tracing.node import Node
from attnverify.precision import Precision, at_least_float32

BOUNDS: dict[str, Callable[[Errors, Node], Rule]] = {
    "leaf": bound_leaf,
    "move": bound_move,
    "select": bound_select,
    "max": bound_max,
    "sum": bound_sum,
    "einsum": bound_product,
    "ew": bound_elementwise,
}

NONLINEAR = {"exp", "divide", "sqrt", "max", "multiply", "log"}

Decisions = Sequence[tuple[Node, bool]]


def enclose(graph: Graph, precision: Precision, exact: str = "") -> Errors:
    """Bound every node of a graph; ``exact``: a line of the user's file that loses nothing."""
    at = Errors(graph, precision, exact=exact, made=enclose_constants(graph, precision))
    with np.errstate(all="ignore"):
        for node in graph.order:
            _visit(at, node)
    return at


def enclose_ends(graph: Graph, precision: Precision, most: int) -> Errors:
    """
    Bound the last nodes of a graph as if all before them lost nothing: what has more than ``most``
    numbers has no error here, but that of weights which are rounded before they multiply.
    """
    at, unit = Errors(graph, precision), 0.0 if graph.backward else unit_of_prob(precision)
    rounded = set[Node]()
    with np.errstate(all="ignore"):
        for node in graph.order:
            if unit and also_kept(at, node) is precision.prob:
                rounded.add(node)
                _lose(at, node, unit * np.abs(node.value))
            elif node.value.size <= most or (node.kind in ROUTING and rounded & {*node.inputs}):
                rounded |= {node} if node.value.size > most else set()
                _bound(at, node)
            else:
                _lose(at, node, np.broadcast_to(0.0, node.shape))
    return at


ROUTING = ("move", "select")
"""Kinds of nodes that compute nothing."""


def _lose(at: Errors, node: Node, E: ndarray) -> None:
    """Take a node to lose so much and no more, whatever it is made of."""
    at.E[node] = at.L[node] = at.own[node] = at.under[node] = E
    at.floors[node] = node.value


def enclose_constants(graph: Graph, precision: Precision) -> Errors | None:
    """
    Bound the steps that make the constants of a graph: in the widest format, unless each step is
    stored. Exponentials and cosines of an exact 0 are 1, and its sine is 0, in every arithmetic.
    """
    made = [node.made for node in graph.order if node.made is not None]
    if not made:
        return None
    P, acc = precision, precision.acc
    if P.step is None:
        P = replace(P, storage=acc, score=acc, softmax=acc, prob=acc, bias=acc, joined=acc)
        P = replace(P, stage=acc, prescale=None, scale_const=None, operand=None)
    at = Errors(Graph(made), P, constants=True)
    with np.errstate(all="ignore"):
        for node in at.graph.order:
            _bound(at, node)
            if node.name in ("exp", "cos", "sin"):
                still = (node.inputs[0].value == 0) & (at.E[node.inputs[0]] == 0)
                at.E[node] = np.where(still, 0.0, at.E[node])
    return at


def output_errors(
    at: Errors, outputs: Sequence[Node], decisions: Decisions = (), wide: Sequence[int] = ()
) -> list[ndarray]:
    """
    Bound the results, stored. Where the specification decided something by values that may as well
    have come out otherwise (an order, the place of a maximum), nothing is said: inf.
    """
    with np.errstate(all="ignore"):
        if any(_is_open(at, node, at_zero) for node, at_zero in decisions):
            return [np.full(node.shape, np.inf) for node in outputs]
        formats = (at.P.storage, at_least_float32(at.P.storage))
        return [stored(at, node, formats[k in wide]) for k, node in enumerate(outputs)]


def _is_open(at: Errors, node: Node, at_zero: bool) -> bool:
    E, size = at.E[node], np.abs(node.value)
    return bool(np.any((size <= E) & ((E > 0) | at_zero)))


def _visit(at: Errors, node: Node) -> None:
    held = _bound(at, node)
    if is_target(at.graph, node):
        _sharpen(at, node, held)


def _bound(at: Errors, node: Node) -> ndarray:
    """Enclose a node by its inputs' errors; return where it may lose anything."""
    propagated, L = BOUNDS[node.kind](at, node)
    finite = np.isfinite(node.value)
    held = finite if node.origin != at.exact or not at.exact else np.zeros(node.shape, bool)
    L = _hidden_overflow(at, node, propagated, L if held.all() else np.where(held, L, 0.0))
    if node.kind == "max" and node in at.graph.before_exponential:
        lowest = (node.value < -at.P.score.max / 4) & held
        propagated = np.where(lowest, np.inf, propagated)
    E = propagated + L
    E = E if finite.all() else np.where(finite, E, 0.0)
    lost = np.isnan(E)
    at.L[node], at.E[node] = L, np.where(lost, np.inf, E) if lost.any() else E
    at.floors[node] = at.find_floor(node)
    return np.asarray(held)


def _hidden_overflow(at: Errors, node: Node, propagated: ndarray, L: ndarray) -> ndarray:
    """A mask near -max may overflow: -inf hides as well, if something in the row does not."""
    if node not in at.graph.before_exponential or not np.isinf(L).any():
        return L
    fmt = at.P.score
    hidden = np.isinf(L) & (node.value < -fmt.max / 4) & np.isfinite(propagated)
    return np.where(hidden, fmt.u * np.abs(node.value), L)


def _sharpen(at: Errors, node: Node, held: ndarray) -> None:
    found = sweep(at, node)
    if found is None:
        return
    is_row = node in at.graph.rows
    if is_row:  # what is rounded is no larger than was found now
        at.given[node] = found
        again = BOUNDS["ew"](at, node)[1]
        at.L[node] = np.fmin(at.L[node], np.where(held, again, 0.0))
    lost = np.isinf(at.E[node]) & (is_row or node.kind == "einsum")
    E = np.fmin(at.E[node], found * (1 + 1e-12) + at.L[node])
    at.E[node] = np.where(lost, np.inf, E)


def is_target(graph: Graph, node: Node) -> bool:
    """Tell whether a sweep starts here: a result or factor behind nonlinear steps."""
    if node.kind in ("leaf", "move", "select"):
        return False
    if node.kind == "einsum":
        if graph.cut and any(is_target(graph, source_of(each)) for each in node.inputs):
            return False
        return any(graph.through(each) for each in node.inputs)
    moved = any(user.kind == "move" and user in graph.ends for user in graph.users[node])
    scaled = node in graph.rows and any(
        user is not None and is_scale(user) for user in graph.users_behind_moves(node)
    )
    last = node in graph.ends or node in graph.multiplied or moved or scaled
    return last and bool(graph.region_names(node) & NONLINEAR)
