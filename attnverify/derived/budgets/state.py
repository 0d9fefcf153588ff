"""What is known of a graph's errors under one arithmetic, node by node."""

from dataclasses import dataclass, field

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import accumulation_error, gamma
from attnverify.derived.forms import factor_of, is_scale, scaled_input
from attnverify.derived.graph import Graph
from attnverify.derived.tracing.node import Node
from attnverify.precision import FORMATS, Format, Precision

TINIEST = 1e-320
SINGLE = FORMATS["float32"].u


@dataclass
class Errors:
    """
    Errors of the nodes that were visited so far.

    E         |computed - exact| at most, elementwise
    L         what the freedom of evaluation may cost at this node alone
    A, n      of a sum: the sizes of all that it adds, products multiplied out (the *mass*), and how
              many; the mass is the same however the sum is factored, reordered or distributed, so
              accumulation_error(n) A holds for every one of these evaluations
    relative  of a row's sum: its own error
    own       of an exponential: the error of its own in its exponent
    under     of an exponential: what underflow may cost
    sizes     |x| where it is finite
    given     of a row: the displacement that a sweep has found already
    exact     a line of the user's file whose steps lose nothing, to see what it costs
    made      errors of the steps that make constants
    constants whether these are such steps
    factors   of a product where each step is stored: how large and how small each factor may be,
              see orders
    floors    what a positive number cannot fall below; minus infinity where nothing is known
    """

    graph: Graph
    P: Precision
    E: dict[Node, ndarray] = field(default_factory=dict)
    L: dict[Node, ndarray] = field(default_factory=dict)
    A: dict[Node, ndarray] = field(default_factory=dict)
    n: dict[Node, int] = field(default_factory=dict)
    relative: dict[Node, ndarray] = field(default_factory=dict)
    own: dict[Node, ndarray] = field(default_factory=dict)
    under: dict[Node, ndarray] = field(default_factory=dict)
    given: dict[Node, ndarray] = field(default_factory=dict)
    sizes: dict[Node, ndarray] = field(default_factory=dict)
    factors: dict[Node, list[tuple[ndarray, ndarray, ndarray]]] = field(default_factory=dict)
    exact: str = ""
    made: "Errors | None" = None
    constants: bool = False
    floors: dict[Node, ndarray | float] = field(default_factory=dict)

    def size(self, node: Node) -> ndarray:
        """|x| + E."""
        return self.value_size(node) + self.E[node]

    def value_size(self, node: Node) -> ndarray:
        """|x|, 0 where it is not finite."""
        if node not in self.sizes:
            self.sizes[node] = np.where(np.isfinite(node.value), np.abs(node.value), 0.0)
        return self.sizes[node]

    def mass(self, node: Node) -> ndarray:
        """|x| + E; of a sum that a product may be distributed over, the sum of the parts' sizes."""
        if not self.graph.joined(node):
            return self.size(node)
        parts = (np.abs(t) for t in self.graph.terms(node))
        return np.asarray(sum(parts, self.E[node]))

    def summed_mass(self, node: Node) -> ndarray:
        return self.A[node] if node in self.A else self.size(node)

    def is_exact(self, node: Node) -> bool:
        return node.kind == "leaf" and not self.E[node].any()

    def floor(self, node: Node) -> ndarray | float:
        """Find what a positive number cannot fall below."""
        return self.floors[node]

    def find_floor(self, node: Node) -> ndarray | float:
        """
        What a positive number cannot fall below: sums of squares, exponentials, and what is added
        to them. An exponential that overflows is no smaller than the largest number, and one that
        may underflow is no larger than 0; 1e-2 stands for the roundings on the way.
        """
        i = node.inputs
        if node.kind == "leaf":
            return float(node.value.min()) if node.is_number else -np.inf
        if node.name == "exp":
            return self._floor_of_exponential(node)
        if (node.name == "multiply" and i[0] is i[1]) or node.name == "absolute":
            return 0.0
        if node.kind in ("sum", "max"):
            terms = np.broadcast_to(self.floor(i[0]), i[0].shape)
            if node.kind == "max":
                return np.asarray(terms.max(node.axes, keepdims=True))
            whole = terms.sum(node.axes, keepdims=True)
            lost = accumulation_error(terms.size // whole.size, self.P) + 1e-2
            return np.where(whole > 0, whole * max(1 - lost, 0.0), whole * (1 + lost))
        if node.kind == "move":
            return self._floor_of_move(node)
        if node.kind == "select" and not node.margins:
            return np.where(node.condition, self.floor(i[0]), self.floor(i[1]))
        if node.name == "add":
            return (self.floor(i[0]) + self.floor(i[1])) * (1 - 1e-2)
        if node.name == "maximum":
            return np.maximum(self.floor(i[0]), self.floor(i[1]))
        if is_scale(node) and factor_of(node) > 0:
            inner = self.floor(scaled_input(node))
            return np.where(inner >= 0, factor_of(node) * inner * (1 - 1e-2), -np.inf)
        if node.name == "sqrt":
            return np.sqrt(np.maximum(self.floor(i[0]), 0.0)) * (1 - 1e-2)
        return -np.inf

    def _floor_of_exponential(self, node: Node) -> ndarray:
        if node not in self.own:
            return np.zeros(node.shape)
        off, fmt = np.minimum(self.E[node.inputs[0]] + self.own[node], 700.0), self.P.softmax
        least = np.minimum(node.value * np.exp(-off), fmt.max) * (1 - 1e-2)
        return np.where(least < 2 * fmt.tiny, 0.0, least)

    def _floor_of_move(self, node: Node) -> ndarray | float:
        floors = [self.floor(each) for each in node.inputs]
        if all(np.ndim(f) == 0 for f in floors) and (node.index >= 0).all():
            return min(float(f) for f in floors)
        pairs = zip(floors, node.inputs, strict=True)
        flat = [np.broadcast_to(f, each.shape).ravel() for f, each in pairs]
        return np.concatenate([*flat, [node.fill]])[node.index]

    def lowest(self, node: Node) -> ndarray:
        """Bound the size of a divisor from below."""
        near = np.where(np.isnan(self.E[node]), np.inf, self.E[node])
        value = np.where(np.isfinite(node.value), np.abs(node.value), self.P.acc.max)
        return np.maximum(np.maximum(value - near, self.floor(node)), 0.0)


def round_off(x: ndarray, E: ndarray, fmt: Format) -> ndarray:
    """Bound one rounding of x, so far off by E: exact zeros stay, what does not fit is inf."""
    size = np.asarray(np.where(np.isfinite(x), np.abs(x), 0.0) + E)
    L = np.asarray(gamma(1, fmt.u) * size)
    small, beyond = size < 2 * fmt.tiny, size > fmt.max / (1 + 2 * fmt.u)
    if small.any():
        np.add(L, np.minimum(fmt.tiny if fmt.ftz else fmt.eta, size), out=L, where=small)
    np.copyto(L, np.inf, where=beyond)
    return L
