r"""
A statistical bound: what rounding to nearest makes of a result, but once in a thousand calls.

To first order an evaluation is off by the sum of what it loses at each step, carried by the
derivative of the result, :math:`\sum_v J_{iv}\,\epsilon_v`, with :math:`|\epsilon_v| \le L_v`. The
worst case adds up :math:`|J_{iv}| L_v`, which behind a norm exceeds what is normalised. Where the
:math:`\epsilon_v` are independent, of mean zero,

.. math:: P\Bigl(|\textstyle\sum_v J_{iv}\epsilon_v| > \lambda \sqrt{V_i}\Bigr) \le
          2 e^{-\lambda^2/2}, \qquad V_i = \sum_v J_{iv}^2 L_v^2

(Hoeffding 1963; of rounding: Higham and Mary 2019, Ipsen and Zhou 2019/20). For independent
standard normal z the tangent :math:`t_i = \sum_v J_{iv} L_v z_v` is normal with that very variance,
so that V is measured without one entry of J: the mean of S squared tangents is :math:`V_i \chi^2_S
/ S`, which is below :math:`x V_i` with a probability of at most :math:`(x e^{1-x})^{S/2}`. Half of
``IMPROBABLE`` goes to each of the two, over all elements of a call.

1. L is that of the derived bounds on exact inputs: what each step may lose in any legal order, in
   the formats that are declared (:mod:`attnverify.derived`).
2. A sum of n passes n roundings, whose root is :math:`\sqrt n` (Higham and Mary 2019, theorem 3.1):
   with ``SIDE_BY_SIDE`` partial sums it is n / 32 + 32 of them, which is at least twice that.
3. What a step loses everywhere in one direction, a rounded constant or ties that are broken one
   way, is not independent: each step has one more variable that all its elements share, in the
   direction of their sign, of the same size.
4. Where numbers are kept in fewer bits than they are summed in, it is these that are lost: bits cut
   off at random, at least one of them. The worst is one, with an error of half a unit or of none, a
   sum of two independent signs, each of half as much: L^2 / 2 in place of L^2. Sums of two such
   numbers alone are ties often, a third of them, and half a unit is 0.72 u in the mean of a
   binade: what they have in common is a quarter of L, and nothing elsewhere.
5. What cuts off in place of rounding to nearest, accumulators with coarser steps and operands that
   are rounded on their way in are not of mean zero: nothing is said.
6. A derivative speaks for small roundings alone: one call is computed with them as large as they
   are, and nothing is said where that differs from its tangent by a quarter of the bound.
7. The reference is one more evaluation, which counts where the results are in float64 as it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, sqrt
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.derived import Derived, derive
from attnverify.derived.budgets.roles import stored
from attnverify.derived.budgets.state import Errors
from attnverify.derived.enclosure import BOUNDS
from attnverify.derived.tracing.elementwise import OTHERS
from attnverify.derived.tracing.node import Node, product
from attnverify.precision import FLOAT64, Precision
from attnverify.reference import layers

IMPROBABLE = 1e-3
"""How often a right call exceeds the bound somewhere, at most."""

TANGENTS = 256
BITS_CUT_OFF, TIES = 0.5**0.5, 0.25
SIDE_BY_SIDE = 32
SMALL = 1e-6
"""How large a perturbation is beside its number: float64 sees its derivative to ten digits."""
REST = 0.25
"""Of a bound, what higher orders may come to."""

Values = dict[Node, ndarray]


class NothingSaid(ValueError):
    """The arithmetic, or the size of its roundings, is none that the statistical bound is for."""


@dataclass(frozen=True)
class Roundings:
    """A layer's graph on some inputs, and what each of its steps may lose in an arithmetic."""

    derived: Derived
    precision: Precision

    @cached_property
    def lost(self) -> dict[Node, ndarray]:
        """L by node, on inputs that have no error."""
        P, graph = self.precision, self.derived.graph
        at = Errors(graph, replace(P, lanes=SIDE_BY_SIDE))
        with np.errstate(all="ignore"):
            for node in graph.order:
                at.E[node] = np.zeros(node.shape)
                made, own = BOUNDS[node.kind](at, node)
                at.L[node] = np.where(np.isfinite(node.value), made + own, 0.0)
                at.floors[node] = at.find_floor(node)
            for node in self.derived.nodes:
                at.L[node] = at.L[node] + stored(at, node, P.storage)
        return {node: L for node, L in at.L.items() if L.any()}

    def perturbed(self, rng: np.random.Generator, share: float) -> list[ndarray]:
        """Compute the results where each step is off by a share of its loss, times a normal z."""
        values = Values()
        with np.errstate(all="ignore"):
            for node in self.derived.graph.order:
                x = self.computed_again(node, values)
                if node in self.lost:
                    own, shared = self.shares(node)
                    z = own * rng.standard_normal(node.shape)
                    if shared:
                        z += shared * rng.standard_normal() * np.sign(node.value)
                    x = x + share * self.lost[node] * z
                values[node] = x
        return [values[node] for node in self.derived.nodes]

    def shares(self, node: Node) -> tuple[float, float]:
        """Of L, what an element has for itself, and what all of a step have in common."""
        if self.precision.storage.p >= self.precision.acc.p:
            return 1.0, 1.0
        return BITS_CUT_OFF, TIES if node.name in ("add", "subtract") else 0.0

    def computed_again(self, node: Node, values: Values) -> ndarray:
        """A step from what its inputs are now; its own value where none of them has changed."""
        if all(values[each] is each.value for each in node.inputs):
            return node.value
        return RULES[node.kind](node, [values[each] for each in node.inputs])

    def tangent(self, seed: int, share: float) -> list[ndarray]:
        """What that makes of the results, for the whole of a loss."""
        found = self.perturbed(np.random.default_rng(seed), share)
        pairs = zip(found, self.derived.nodes, strict=True)
        return [(x - node.value) / share for x, node in pairs]


def tangents_of(
    operation: str, inputs: Mapping[str, Any], precision: Precision
) -> tuple[list[ndarray], list[ndarray]]:
    """
    Draw what roundings make of each output of a layer, to first order, ``TANGENTS`` times along a
    new first axis; beside them what one of these draws leaves to higher orders. Raises NothingSaid
    where the roundings are not of mean zero.
    """
    if not is_to_nearest(precision):
        raise NothingSaid("what it declares is not rounded to nearest")
    roundings = Roundings(derive(getattr(layers, operation), inputs), precision)
    share = SMALL / precision.storage.u
    drawn = [roundings.tangent(seed, share) for seed in range(TANGENTS)]
    rest = [whole - small for whole, small in zip(roundings.tangent(0, 1.0), drawn[0], strict=True)]
    return [np.stack(each) for each in zip(*drawn, strict=True)], rest


def statistical_bound(
    tangents: ndarray, rest: ndarray, numbers: int, precision: Precision
) -> ndarray:
    """
    Bound what rounding comes to, but for one call in 1 / ``IMPROBABLE``, of which so many numbers
    are held to their bounds: outputs, or linear functions of them, in their units. ``tangents`` and
    ``rest`` are those of :func:`tangents_of`. Raises NothingSaid where the roundings are too large.
    """
    evaluations = 2 if precision.storage.p >= FLOAT64.p else 1
    found: ndarray = np.sqrt(evaluations * np.mean(np.square(tangents), axis=0))
    found = factor_of_root(numbers) * found
    if not (np.abs(rest) <= REST * found).all():
        raise NothingSaid("its roundings are too large for a derivative")
    return found


def factor_of_root(numbers: int) -> float:
    """lambda, and what the mean of squared tangents may be too small by, for so many numbers."""
    each = IMPROBABLE / 2 / numbers
    low, high = 0.0, 1.0
    for _ in range(60):
        x = (low + high) / 2
        rare = TANGENTS / 2 * (log(x) + 1 - x) < log(each)
        low, high = (x, high) if rare else (low, x)
    return sqrt(2 * log(2 / each) / low)


def is_to_nearest(P: Precision) -> bool:
    formats = (P.storage, P.acc, P.score, P.softmax, P.prob, P.stage, P.joined)
    return P.acc_unit is None and P.operand is None and not any(f.truncates for f in formats)


def _move(node: Node, given: list[ndarray]) -> ndarray:
    pairs = zip(given, node.inputs, strict=True)
    flat = [np.broadcast_to(x, each.shape).ravel() for x, each in pairs]
    return np.concatenate([*flat, [node.fill]])[node.index]


def _elementwise(node: Node, given: list[ndarray]) -> ndarray:
    function = OTHERS.get(node.name) or getattr(np, node.name)
    found: ndarray = node.value if node.name == "cast" else function(*given)
    return found


RULES: dict[str, Callable[[Node, list[ndarray]], ndarray]] = {
    "leaf": lambda node, given: node.value,
    "move": _move,
    "select": lambda node, given: np.where(node.condition, *given),
    "max": lambda node, given: given[0].max(node.axes, keepdims=True),
    "sum": lambda node, given: given[0].sum(node.axes, keepdims=True),
    "einsum": lambda node, given: product("{},{}->{}".format(*node.spec), *given),
    "ew": _elementwise,
}
"""How each kind of node is computed again, from what its inputs are now."""
