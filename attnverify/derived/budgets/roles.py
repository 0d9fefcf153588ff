"""
What each node is rounded to: the roles of a graph, in the words of the Precision record.

    A region is what is connected without passing a product. In a region with an exponential, what
    comes before it is `score`, after it `softmax`, a factor of a product `prob`; an activation
    (an exponential without a row) is written to `stage`. Elsewhere sums of products are `stage`,
    sums that go into a product `joined`, and everything else `acc`.
"""

import numpy as np
from numpy import ndarray

from attnverify.derived.budgets.state import Errors, round_off
from attnverify.derived.forms import is_scale, is_sum, source_of
from attnverify.derived.tracing.node import Node
from attnverify.precision import Format

BELLS = ("tanh", "erf")
"""Functions in whose region numbers are kept as scores are."""


def kept(at: Errors, node: Node) -> Format | None:
    """
    Find what a node is rounded to, beyond what its sum is made in; None: it is not, as what is only
    moved, chosen or negated. Where each step is stored, that is no wider.
    """
    if node.kind in ("leaf", "move", "select", "max") or node.name == "negative":
        return None
    fmt, step = _kept_by_role(at, node), at.P.step
    return fmt if step is None or fmt.p < step.p else step


def _kept_by_role(at: Errors, node: Node) -> Format:
    P, graph = at.P, at.graph
    names = graph.region_names(node)
    if "exp" in names:
        return _kept_beside_exponential(at, node)
    if not names.isdisjoint(BELLS):
        return P.score
    return _kept_of_sum(at, node) if is_sum(node) else P.acc


def _kept_beside_exponential(at: Errors, node: Node) -> Format:
    P, graph = at.P, at.graph
    if node in graph.before_exponential or node.kind == "einsum":
        return P.score
    if not graph.has_row(node) and node.name in ("multiply", "divide"):
        return P.stage  # an activation is written to memory, a softmax's inner steps are not
    return P.softmax


def _kept_of_sum(at: Errors, node: Node) -> Format:
    P, graph = at.P, at.graph
    if graph.joined(node) and node in graph.multiplied:
        return P.joined
    if graph.is_last(node):
        return P.joined if graph.backward else P.storage if graph.has_exponentials else P.score
    return P.stage if graph.of_products(node) else P.acc


def also_kept(at: Errors, node: Node) -> Format | None:
    """Find what a factor of a product, that was computed, is stored in for it."""
    P, graph = at.P, at.graph
    if graph.backward and node in graph.rows:
        return P.prob
    moved = node.kind in ("leaf", "einsum", "move", "select")
    if node not in graph.multiplied or moved or graph.joined(node):
        return None
    names = graph.region_names(node)
    return P.prob if "exp" in names else P.stage if names.isdisjoint(BELLS) else None


def stored(at: Errors, node: Node, storage: Format) -> ndarray:
    """Bound a result: rounded to storage, unless it is kept in that format already."""
    E, source = at.E[node], source_of(node)
    fmt = also_kept(at, source) or kept(at, source)
    same = fmt is not None and fmt.p == storage.p and fmt.emin == storage.emin
    if source.kind != "leaf" and not same:
        E = E + round_off(node.value, E, storage)
    return np.where(np.isnan(E), np.inf, E)


def is_power_of_two(node: Node) -> bool:
    """Tell whether it scales by a power of two, which is exact."""
    return is_scale(node) and _is_power(node)


def _is_power(node: Node) -> bool:
    c = next(each for each in reversed(node.inputs) if each.is_number).number
    return c != 0 and bool(np.frexp(abs(c))[0] == 0.5)
