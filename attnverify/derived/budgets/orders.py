"""
Products of several factors in another order: where each step is stored, what comes between may
leave the format, as the cube of 1 / sqrt(v) does in the gradient that a library writes with it.
"""

from collections.abc import Callable

import numpy as np
from numpy import ndarray

from attnverify.derived.budgets.state import Errors
from attnverify.derived.tracing.node import Node

Factor = tuple[ndarray, ndarray, ndarray]
"""
Base-2 logarithms, 0 where it is 0, of how large and how small a factor of a product may be, and of
what counts of it where others are to overflow.
"""


def other_orders(at: Errors, node: Node) -> ndarray | float:
    """
    Bound what a product loses on the way through any part of it: infinite where the factors above 1
    alone overflow; where those below 1 alone underflow, eta for each factor, times those above.
    """
    fmt = at.P.step
    if fmt is None:
        return 0.0
    one, other = (_factors_of(at, each) for each in node.inputs)
    if node.name == "divide":
        other = [(-small, -large, -small) for large, small, _ in other]
    factors = [_mapped(each, lambda x: np.broadcast_to(x, node.shape)) for each in (*one, *other)]
    at.factors[node] = factors
    up = sum(np.maximum(large, 0.0) for large, _, _ in factors)
    down = sum(np.minimum(small, 0.0) for _, small, _ in factors)
    top = sum(np.maximum(over, 0.0) for _, _, over in factors)
    lost = len(factors) * fmt.eta * np.exp2(np.minimum(up, 1000.0))
    L = np.where(down < np.log2(2 * fmt.tiny), lost, 0.0)
    return np.where(top > np.log2(fmt.max), np.inf, L)


def _factors_of(at: Errors, node: Node) -> list[Factor]:
    """Return the factors of a product; of another number itself."""
    if node.name == "negative":
        return _factors_of(at, node.inputs[0])
    if node in at.factors:
        return at.factors[node]
    if node.kind == "move" and len(node.inputs) == 1 and node.inputs[0] in at.factors:
        inner = at.factors[node.inputs[0]]
        return [_mapped(each, lambda x: np.append(x.ravel(), 0.0)[node.index]) for each in inner]
    own = _itself(at, node)
    if node.kind == "sum" and node.inputs[0] in at.factors:
        return _taken_out(node, own, at.factors[node.inputs[0]])
    return [own]


def _itself(at: Errors, node: Node) -> Factor:
    size = at.size(node)
    with np.errstate(divide="ignore"):
        large, small = np.log2(size), np.log2(at.lowest(node))
    large, small = (np.where(size > 0, x, 0.0) for x in (large, small))
    return large, small, large


def _taken_out(node: Node, own: Factor, factors: list[Factor]) -> list[Factor]:
    """
    Of a sum, from which a library takes what all terms have in common: those factors, and the sum
    without them, which is multiplied with one of them before it is with others.
    """
    common = [
        (large.max(node.axes, keepdims=True), small.min(node.axes, keepdims=True))
        for large, small, _ in factors
        if not np.ptp(large, axis=node.axes).any() and not np.ptp(small, axis=node.axes).any()
    ]
    large, small, over = own
    for above, below in common:
        large, small = large - below, small - above
    rest = (large, small, np.minimum(large, over))
    return [*((above, below, above) for above, below in common), rest]


def _mapped(factor: Factor, change: Callable[[ndarray], ndarray]) -> Factor:
    large, small, over = factor
    return change(large), change(small), change(over)
