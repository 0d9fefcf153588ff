"""Means: products with the weights of a row, the last step of every attention."""

import numpy as np
from numpy import ndarray

from attnverify.derived.budgets.roles import also_kept
from attnverify.derived.budgets.state import Errors
from attnverify.derived.budgets.sums import operand
from attnverify.derived.forms import source_of
from attnverify.derived.tracing.node import Node, product
from attnverify.precision import Precision


def errors_of_values(at: Errors, target: Node) -> ndarray:
    """Bound what the errors of the other factor cost: their mean, never more than the largest."""
    a, b, out = target.spec
    E = np.zeros(target.shape)
    for place, each in enumerate(target.inputs):
        E_each = operand(at, each)
        if at.graph.through(each) or not E_each.any():
            continue
        other, own = at.size(target.inputs[1 - place]), (a, b)[place]
        pair = (E_each, other) if place == 0 else (other, E_each)
        side = product(f"{a},{b}->{out}", *pair)
        if source_of(target.inputs[1 - place]) in at.graph.rows:
            side = np.fmin(side, _largest_value(E_each, target, place, own, side))
        E = E + side
    return E


def _largest_value(E: ndarray, target: Node, place: int, own: str, side: ndarray) -> ndarray:
    a, b, out = target.spec
    if set(own) - set(out) != set((a, b)[1 - place]) - set(out):
        return side
    gone = tuple(j for j, c in enumerate(own) if c not in out)
    kept_letters = [c for c in own if c in out]
    most = E.max(gone)
    order = sorted(range(len(kept_letters)), key=lambda j: out.index(kept_letters[j]))
    broadcast = tuple(slice(None) if c in kept_letters else None for c in out)
    return most.transpose(order)[broadcast] * (1 + 1e-3)


def lost_on_the_way(at: Errors, target: Node) -> dict[Node, ndarray]:
    """Bound what the weights that go into a product lose to the format of its operands."""
    factors = filter(at.graph.through, target.inputs) if target.kind == "einsum" else ()
    lost = {each: operand(at, each) - at.E[each] for each in factors}
    return {each: E for each, E in lost.items() if E.any()}


def unit_of_prob(P: Precision) -> float:
    return P.prob.u if P.prob.p < P.softmax.p or P.prob.p < 24 else 0.0


def rounded_weights(at: Errors, node: Node, operands: dict[Node, ndarray]) -> ndarray:
    """Bound what weights lose that are rounded once they are divided: to `prob`, to operands."""
    kept = also_kept(at, node) is at.P.prob
    return kept * unit_of_prob(at.P) * np.abs(node.value) + operands.get(node, 0.0)
