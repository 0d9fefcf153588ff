"""
Bounds derived from a specification: a NumPy function is traced, differentiated where a gradient is
wanted, and the error of every legal way to compute it is bounded on its own graph.

    tracing/   the function runs on traced arrays and leaves a graph of seven kinds of node
    graph      what the graph is under every arithmetic: regions, rows, terms of sums
    gradient   the graph of its gradient
    budgets/   what the freedom of evaluation may cost at each node
    enclosure  the forward pass: an error of every node by absolute values
    sweeping/  the reverse sweep that makes it sharp
    legal/     legal evaluations, searched for one beyond its bound

What kernels are free to do belongs to kinds of node, not to operations: it is written once, and
holds for operations that nobody has written yet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.derived.budgets.state import Errors
from attnverify.derived.enclosure import enclose, enclose_ends, output_errors
from attnverify.derived.gradient import Collect, added, gradient
from attnverify.derived.graph import Graph
from attnverify.derived.tracing.array import Traced
from attnverify.derived.tracing.node import Node, NotUnderstood
from attnverify.derived.tracing.run import trace
from attnverify.precision import Precision

MANY = 2**15
"""Numbers whose bound is not worked out where less will do."""

__all__ = ["Derived", "NotUnderstood", "derive", "derive_gradient"]


@dataclass(frozen=True)
class Derived:
    """
    A traced specification on some inputs: a tree of nodes, None where it gives None, and what it
    decided by values; ``cut`` as :class:`Graph` has it.
    """

    outputs: Any
    decisions: Sequence[tuple[Node, bool]] = ()
    backward: bool = False
    cut: bool = False

    @cached_property
    def nodes(self) -> list[Node]:
        return [node for node in leaves(self.outputs) if node is not None]

    @cached_property
    def graph(self) -> Graph:
        decided = [node for node, _ in self.decisions]
        return Graph(self.nodes, self.backward, decided, self.cut)

    @cached_property
    def values(self) -> Any:
        """What the specification answers, in float64."""
        return map_leaves(lambda node: None if node is None else node.value, self.outputs)

    def errors(self, precision: Precision, wide: Sequence[int] = ()) -> Any:
        """
        Bound how far off each output may be under an arithmetic; inf where nothing is said. Those
        at the ``wide`` places have at least float32.
        """
        return self._stored(self.enclosed(precision), wide)

    def least(self, precision: Precision, wide: Sequence[int] = ()) -> Any:
        """
        Bound from below what :meth:`errors` gives, in a tenth of its time: what the last steps may
        lose, whose numbers are no more than a result has. None where weights are not many more.
        """
        most = max(node.value.size for node in self.nodes)
        if min((row.value.size for row in self.graph.rows), default=0) <= max(most, MANY):
            return None
        return self._stored(enclose_ends(self.graph, precision, most), wide)

    def _stored(self, at: Errors, wide: Sequence[int]) -> Any:
        found = iter(output_errors(at, self.nodes, self.decisions, wide))
        return map_leaves(lambda node: None if node is None else next(found), self.outputs)

    def enclosed(self, precision: Precision, exact: str = "") -> Errors:
        return enclose(self.graph, precision, exact)

    @property
    def lines(self) -> list[str]:
        """The lines of the user's file that compute something, in their order."""
        return list(dict.fromkeys(node.origin for node in self.graph.order if node.origin))

    def without(self, line: str, precision: Precision) -> list[ndarray]:
        """Bound the results as they were if one line lost nothing; their storage counts."""
        return output_errors(self.enclosed(precision, line), self.nodes, self.decisions)


def derive(specification: Callable[..., Any], inputs: Mapping[str, Any]) -> Derived:
    """Trace a specification. Raises NotUnderstood where something has no rule."""
    found = trace(specification, inputs)
    return Derived(found.outputs, found.decisions)


def derive_gradient(
    specification: Callable[..., Any],
    inputs: Mapping[str, Any],
    d_outputs: Sequence[ndarray],
    wanted: Sequence[str],
    cut: bool = False,
    collect: Collect = added,
) -> Derived:
    """
    Trace the gradients of sum(output * d_output) by these arguments, one for each array in them;
    zero where the output does not depend on it.
    """
    found = trace(specification, inputs)
    arrays = [x for name in wanted for x in leaves(found.inputs[name]) if isinstance(x, Traced)]
    pairs = list(zip(found.nodes, d_outputs, strict=True))
    parts = gradient(pairs, [x.node for x in arrays], collect)
    given = [
        part.node if part is not None else Node("leaf", "zero", [], np.zeros(x.shape))
        for part, x in zip(parts, arrays, strict=True)
    ]
    return Derived(tuple(given), found.decisions, backward=True, cut=cut)
