"""
Legal evaluations of a traced graph: every node is computed in the formats that the arithmetic
declares, by a formula, in an order, with errors of functions and in a place of the division that a
seed chooses.
A search changes one node's seed at a time and keeps what brings the result nearer to its bound.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import numpy as np
from numpy import ndarray

from attnverify.catalogue.pytrees import leaves
from attnverify.derived import Derived
from attnverify.derived.budgets.elementwise import undecided
from attnverify.derived.budgets.roles import also_kept, kept
from attnverify.derived.budgets.state import SINGLE, Errors
from attnverify.derived.legal.rewritings import rewritten
from attnverify.derived.tracing.elementwise import OTHERS
from attnverify.derived.tracing.node import COLLECTED, Node
from attnverify.precision import Format, Precision

ERRING = {"exp": "exp_ulps", "log": "exp_ulps", "tanh": "tanh_ulps"}
ERRING |= {"sin": "sin_ulps", "cos": "sin_ulps"}


def rounded(x: ndarray, fmt: Format) -> ndarray:
    """Round to the nearest number of a format, subnormal numbers and overflow included."""
    if fmt.p >= 53:
        return x
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(x)
        step = np.ldexp(1.0, np.maximum(exponent - fmt.p, fmt.emin - fmt.p + 1))
        found = np.where(np.isfinite(x), np.rint(x / step) * step, x)
    return np.where(np.abs(found) > fmt.max, np.copysign(np.inf, x), found)


def moved(x: ndarray, fmt: Format, ulps: float, rng: np.random.Generator) -> ndarray:
    """Move numbers by so many ulps at most, all to one side or each to its own."""
    sign = rng.choice([-1.0, 1.0]) if rng.random() < 0.5 else rng.uniform(-1, 1, x.shape)
    return x * (1 + sign * 2 * fmt.u * ulps * 0.99)


READ_BEFORE = 0.3
"""How many uses of a number that is kept read it as it was before that."""


@dataclass
class Evaluation:
    """
    One way to compute a graph: a seed for each node. A number that is kept may be read by some of
    its uses as it was ``before`` that.
    """

    derived: Derived
    at: Errors
    seeds: dict[Node, int]
    values: dict[Node, ndarray] = field(default_factory=dict)
    before: dict[Node, ndarray] = field(default_factory=dict)

    def run(self) -> list[ndarray]:
        with np.errstate(all="ignore"):
            if self.at.made is not None:  # one way to compute the constants, for all of them
                constants = Evaluation(self.derived, self.at.made, self.seeds, self.values)
                constants.visit()
            self.visit()
            return [rounded(self.values[node], self.at.P.storage) for node in self.derived.nodes]

    def visit(self) -> None:
        for node in self.at.graph.order:
            kept = {each: self.values[each] for each in node.inputs if each in self.before}
            if kept:
                rng = np.random.default_rng(self.seeds.get(node, 0) + 1)
                self.values |= {
                    each: self.before[each] for each in kept if rng.random() < READ_BEFORE
                }
            self.values[node] = self.compute(node)
            self.values |= kept

    def compute(self, node: Node) -> ndarray:
        rng = np.random.default_rng(self.seeds.get(node, 0))
        found = rewritten(self, node, rng)
        found = RULES[node.kind](self, node, rng) if found is None else found
        if node in self.at.graph.exponents and self.at.P.step is None:
            return found  # what an exponent loses is the exponential's
        fmt, extra, before = kept(self.at, node), also_kept(self.at, node), found
        if fmt is not None and fmt.p < self.at.P.acc.p and rng.random() < 0.7:
            found = rounded(found, fmt)
        if extra is not None and rng.random() < 0.7:
            found = rounded(found, extra)
        if found is not before:
            self.before[node] = before
        return found

    def leaf(self, node: Node, rng: np.random.Generator) -> ndarray:
        if node.made is not None:
            return self.values[node.made]
        exact = not node.const or rng.random() < 0.5
        return node.value if exact else rounded(node.value, self.at.P.acc)

    def move(self, node: Node, rng: np.random.Generator) -> ndarray:
        flat = [self.values[i].ravel() for i in node.inputs]
        return np.concatenate([*flat, [node.fill]])[node.index]

    def select(self, node: Node, rng: np.random.Generator) -> ndarray:
        a, b = (self.values[i] for i in node.inputs)
        other = undecided(self.at, node) & (rng.random(node.shape) < 0.5)
        return np.where(node.condition ^ (other & bool(node.fill)), a, b)

    def max(self, node: Node, rng: np.random.Generator) -> ndarray:
        return self.values[node.inputs[0]].max(node.axes, keepdims=True)

    def sum(self, node: Node, rng: np.random.Generator) -> ndarray:
        return self.total(node, self.values[node.inputs[0]], rng)

    def total(self, node: Node, x: ndarray, rng: np.random.Generator) -> ndarray:
        """Sum what a node sums, of these numbers."""
        terms = np.moveaxis(x, node.axes, range(len(node.axes)))
        terms = terms.reshape(-1, *terms.shape[len(node.axes) :])
        if node.name == COLLECTED and self.at.P.step is not None and rng.random() < 0.7:
            return self.in_memory(terms).reshape(node.shape)
        return self.added(terms, rng).reshape(node.shape)

    def in_memory(self, parts: ndarray) -> ndarray:
        """Add each part to what is stored."""
        total, fmt = np.zeros(parts.shape[1:]), self.at.P.step or self.at.P.acc
        for part in parts:
            total = rounded(total + part, fmt)
        return total

    def einsum(self, node: Node, rng: np.random.Generator) -> ndarray:
        a, b, out = node.spec
        factors, divisor = [self.values[i] for i in node.inputs], None
        for place, each in enumerate(node.inputs):
            row = self.at.graph.rows.get(each)
            own = (a, b)[place]
            if row is not None and len(row.axes) == 1 and rng.random() < 0.5:
                letters = [c for c in own if c != own[row.axes[0]]]
                if set(letters) <= set(out):  # the sum is divided, not the weights
                    factors[place] = rounded(self.values[row.exponential], self.at.P.prob)
                    total = self.values[each.inputs[1]].squeeze(row.axes)
                    divisor = np.einsum(
                        f"{''.join(letters)},{out}->{out}", total, np.ones(node.shape)
                    )
        found = self.product(node, factors, rng)
        return found if divisor is None else self.quotient(found / divisor, rng)

    def product(self, node: Node, factors: list[ndarray], rng: np.random.Generator) -> ndarray:
        """Multiply as a node does, these factors."""
        a, b, out = node.spec
        if self.at.P.operand is not None:
            factors = [rounded(x, self.at.P.operand) if rng.random() < 0.7 else x for x in factors]
        gone = [c for c in dict.fromkeys(a + b) if c not in out]
        terms = np.einsum(f"{a},{b}->{''.join(gone)}{out}", *factors)
        by_one = set(out) <= set(a) or set(out) <= set(b)
        if self.at.graph.backward and by_one and rng.random() < 0.5:
            terms = rounded(terms, self.at.P.joined)  # of a matrix and a vector, kept one by one
        parts = np.moveaxis(terms, int(np.argmin(terms.shape[: len(gone)])), 0) if gone else terms
        if self.at.P.step is not None and len(gone) > 1 and rng.random() < 0.7:
            return self.in_memory(self.added(parts, rng).reshape(-1, *node.shape))
        return self.added(terms.reshape(-1, *node.shape), rng)

    def ew(self, node: Node, rng: np.random.Generator) -> ndarray:
        if node.name == "cast":
            return node.value
        function = OTHERS.get(node.name) or getattr(np, node.name)
        found = function(*(self.values[i] for i in node.inputs))
        if node.name in ERRING:
            exact = self.at.constants & (self.values[node.inputs[0]] == 0)
            found = np.where(exact, found, self.erring(node.name, found, rng))
        return self.quotient(found, rng) if node.name == "divide" else self.acc(found)

    def erring(self, name: str, x: ndarray, rng: np.random.Generator) -> ndarray:
        """
        Move what a function gave by as many ulps as it may err: sines in `acc`. Half of one is left
        to the rounding of what it gives.
        """
        P = self.at.P
        fmt = P.acc if ERRING[name] == "sin_ulps" else P.softmax
        return moved(x, fmt, getattr(P, ERRING[name]) - 0.5, rng)

    def quotient(self, x: ndarray, rng: np.random.Generator) -> ndarray:
        """Round a quotient; in float32 a GPU's own is up to 2 ulps from that."""
        fmt = self.at.P.acc
        approximate = fmt.u == SINGLE and not self.at.constants and rng.random() < 0.5
        return self.acc(moved(self.acc(x), fmt, 2, rng) if approximate else x)

    def acc(self, x: ndarray) -> ndarray:
        return rounded(x, self.at.P.acc)

    def to(self, x: ndarray, fmt: Format) -> ndarray:
        return rounded(x, fmt)

    def added(self, terms: ndarray, rng: np.random.Generator) -> ndarray:
        """Add up in some order: one by one, in blocks, or pair by pair."""
        terms = terms[rng.permutation(len(terms))] if rng.random() < 0.7 else terms
        how = rng.integers(3)
        if how == 0:
            fused = rng.random() < 0.5
            return self.one_by_one(terms if fused else self.acc(terms))
        if how == 1 and len(terms) > 2:
            cut = int(rng.integers(1, len(terms)))
            parts = [self.one_by_one(self.acc(part)) for part in (terms[:cut], terms[cut:])]
            return self.acc(parts[0] + parts[1])
        while len(terms) > 1:
            odd = terms[len(terms) // 2 * 2 :]
            terms = np.concatenate([self.acc(terms[:-1:2][: len(terms) // 2] + terms[1::2]), odd])
        return self.acc(terms[0]) if len(terms) else terms.sum(0)

    def one_by_one(self, terms: ndarray) -> ndarray:
        total = np.zeros(terms.shape[1:])
        for term in terms:
            total = self.acc(total + term)
        return total


RULES: dict[str, Callable[[Evaluation, Node, np.random.Generator], ndarray]] = {
    name: getattr(Evaluation, name)
    for name in ("leaf", "move", "select", "max", "sum", "einsum", "ew")
}


def shares(derived: Derived, at: Errors, bounds: list[ndarray], seeds: dict[Node, int]) -> float:
    """The largest share of the bound that this evaluation uses."""
    worst = 0.0
    for node, bound, got in zip(
        derived.nodes, bounds, Evaluation(derived, at, seeds).run(), strict=True
    ):
        held = np.isfinite(bound) & np.isfinite(node.value)
        error = np.abs(got - node.value)
        with np.errstate(all="ignore"):
            share = np.where(held & (error > 0), error / bound, 0.0)
        worst = max(worst, float(np.where(np.isnan(share), np.inf, share).max(initial=0)))
    return worst


def climb(derived: Derived, precision: Precision, steps: int, seed: int = 0) -> float:
    """Search for the legal evaluation that comes nearest to its bound."""
    rng, at = Random(seed), derived.enclosed(precision)
    bounds = [x for x in leaves(derived.errors(precision)) if x is not None]
    order = [*derived.graph.order, *(at.made.graph.order if at.made else ())]
    best, seeds = 0.0, {node: rng.randrange(2**30) for node in order}
    for step in range(steps):
        changed = rng.sample(order, min(1 + step % 3, len(order)))
        others = seeds | {node: rng.randrange(2**30) for node in changed}
        if (found := shares(derived, at, bounds, others)) >= best:
            best, seeds = found, others
    return best
