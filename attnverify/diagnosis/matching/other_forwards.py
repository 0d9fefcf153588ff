"""
Gradients of another forward than the specification's: of the one that the kernel computes, or of
one that its backward computes anew.

No candidate's gradient is computed. What was seen is projected on random directions of each input,
and so is the candidate, by a central difference of its forward in float64: two calls of it for each
direction. Errors of random signs leave a projection with the root of the sum of their squares.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.catalogue.pytrees import leaves
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.candidates import Candidate, candidates
from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.diagnosis.layers.backward import Forward, backward_mistakes
from attnverify.diagnosis.public_conventions import PUBLIC
from attnverify.inputs.recipe import Inputs
from attnverify.judge.observation import Observation, arrays, tolerance

STEP = 1e-6
"""The step of the difference, as a share of each input's size."""
NOTHING = 1e-30
"""A gradient that may be off by less is 0 by the specification."""
DEVIATIONS = 4.0
"""So many times the root of the sum of squared bounds may a projection err."""
SMALL = 15_000
"""So many numbers at most go into a case that is projected."""
MOST, FEWEST = 5, 3
"""
So many failing cases at most are held against the candidates, and so many at least tell: two fit by
chance.
"""
MOST_PASSING = 8
CLEARLY = 4.0
"""So many times the tolerance must the specification's gradients be off in one of the cases."""


@dataclass(frozen=True)
class Projection:
    """What was seen of gradients, along one random direction of each input."""

    seen: Observation
    operation: Operation

    @cached_property
    def directions(self) -> list[ndarray]:
        """A direction for each differentiable input, of its size."""
        generator = np.random.default_rng(0)
        inputs = [x for x in float_leaves(self.seen.inputs)]
        return [generator.choice([-1.0, 1.0], x.shape) * typical_size(x) for x in inputs]

    @cached_property
    def sound(self) -> list[int]:
        """
        The inputs along which the difference of the specification is its gradient; where that must
        be 0, another forward may have a kink, of which a difference says nothing.
        """
        law = of_inputs(self.operation.forward.reference)
        own, limits = self.along(self.seen.expected), self.tolerances
        off = (abs(own[k] - self.of(law, [k])) for k in range(len(limits)))
        return [k for k, far in enumerate(off) if far <= limits[k] and limits[k] > NOTHING]

    @cached_property
    def tolerances(self) -> list[float]:
        """How far each projection may be from that of the gradient that was computed."""
        limits = (
            tolerance(b, a, self.seen.dtype) if b is not None else np.zeros(a.shape)
            for a, b in zip(self.seen.actual, self.seen.bounds, strict=True)
        )
        both = zip(limits, self.directions, strict=True)
        return [DEVIATIONS * float(np.sqrt(((x * r) ** 2).sum())) for x, r in both]

    def along(self, gradients: Sequence[ndarray]) -> list[float]:
        both = zip(gradients, self.directions, strict=True)
        return [float((x * r).sum()) for x, r in both]

    def of(self, forward: Forward, which: Sequence[int]) -> float:
        """The projection of a forward's gradient, along the directions of some inputs at once."""
        given = {name: x for name, x in self.seen.inputs.items() if not name.startswith("d_")}
        chosen = [r if k in which else 0 * r for k, r in enumerate(self.directions)]
        try:
            with np.errstate(all="ignore"):
                at = forward(given, self.seen.dtype)
                up, down = (arrays(at(moved(given, chosen, by))) for by in (STEP, -STEP))
        except Exception:  # a fault may crash on such inputs
            return np.inf
        arriving = [x for name, x in self.seen.inputs.items() if name.startswith("d_")]
        d = [x for tree in arriving for x in leaves(tree)]
        if len(up) != len(d):
            return np.inf
        if any(x is not None and x.shape != y.shape for x, y in zip(d, up, strict=True)):
            return np.inf
        parts = (
            np.where(x == 0, 0.0, x * (one - other)).sum()
            for x, one, other in zip(d, up, down, strict=True)
            if x is not None
        )
        with np.errstate(all="ignore"):  # infinity less infinity, where a forward overflows
            total = float(sum(parts)) / (2 * STEP)
        return total if np.isfinite(total) else np.inf

    def worst(self, forward: Forward) -> float:
        """How far the forward's gradients are from those that were seen, as a share."""
        own, limits = self.along(self.seen.actual), self.tolerances
        off = (abs(own[k] - self.of(forward, [k])) / max(limits[k], 1e-300) for k in self.sound)
        return max(off, default=0.0)

    def joint(self, forward: Forward) -> float:
        """The same of all inputs at once, which is cheaper."""
        both = self.along(self.seen.actual), self.tolerances
        own, limits = (np.array(x)[self.sound] for x in both)
        limit = max(float(np.sqrt((limits**2).sum())), 1e-300)
        return abs(float(own.sum()) - self.of(forward, self.sound)) / limit


def find_other_forward(
    operation: Operation, failing: Sequence[Observation], passed: Sequence[Observation]
) -> Cause | None:
    """Find the forward whose gradients all failing cases show, and no passing one contradicts."""
    if not operation.is_gradient or operation.outside is not None:
        return None
    law = of_inputs(operation.forward.reference)
    projected = sorted(
        (Projection(o, operation) for o in failing if is_fit(o)), key=lambda p: p.seen.size
    )
    off = {id(p): p.worst(law) for p in projected}
    told = [p for p in projected if off[id(p)] >= CLEARLY][:MOST]
    if len(told) < FEWEST:
        return None
    found = list(forwards(operation))
    for p in told:
        near = [one for one in found if p.joint(one[2]) <= 1]
        found = [one for one in near if p.worst(one[2]) <= 1]
        if not found:
            return None
    right = [Projection(o, operation) for o in passed if is_fit(o)][:MOST_PASSING]
    found = [one for one in found if all(p.worst(one[2]) <= 1 for p in (*projected, *right))]
    words = list(dict.fromkeys(words for _, words, _ in sorted(found, key=lambda one: one[0])))
    words = [w for w in words if not any(w.startswith(f"{other},") for other in words)][:2]
    named = (say.AS_IN.format(mistake=w, packages=PUBLIC[w]) if w in PUBLIC else w for w in words)
    template = say.GRADIENTS_OF.format(mistakes=say.EITHER.join(named), cases=len(told))
    return Cause(template, tuple(Explanation.of(w) for w in words)) if words else None


def is_fit(o: Observation) -> bool:
    """Whether an observation can be projected: small, of numbers alone, each by its input."""
    shapes = [x.shape for x in float_leaves(o.inputs)]
    finite = all(np.isfinite(x).all() for x in o.actual)
    bounded = all(b is not None and np.isfinite(b).all() for b in o.bounds)
    alike = shapes == [x.shape for x in o.actual] == [x.shape for x in o.expected]
    plain = {name: x for name, x in o.inputs.items() if "mask" not in name}
    given = all(np.isfinite(x).all() for x in float_leaves(plain))
    return o.size <= SMALL and alike and finite and bounded and given


def forwards(operation: Operation) -> Iterator[tuple[tuple[int, int], str, Forward]]:
    """How simple, words and forward of each candidate."""
    for candidate in candidates(operation.forward.name):
        if candidate.of is not None:
            yield candidate.simplicity, candidate.words, of_candidate(candidate)
    for words, forward in backward_mistakes(operation.forward):
        yield (2, len(words)), words, forward


def of_candidate(candidate: Candidate) -> Forward:
    of = candidate.of
    assert of is not None
    return lambda given, dtype: lambda inputs: of(inputs, dtype)


def of_inputs(function: Callable[..., Any]) -> Forward:
    return lambda given, dtype: lambda inputs: function(**inputs)


def float_leaves(inputs: Any) -> Iterator[ndarray]:
    """The differentiable inputs, in the order of their gradients."""
    for name, x in inputs.items() if isinstance(inputs, dict) else enumerate(inputs):
        if str(name).startswith("d_"):
            continue
        if isinstance(x, dict | list):
            yield from float_leaves(x)
        elif isinstance(x, ndarray) and x.dtype.kind == "f":
            yield x


def moved(inputs: Inputs, directions: Sequence[ndarray], by: float) -> Any:
    """The inputs, so far along their directions."""
    left = iter(directions)

    def move(x: Any) -> Any:
        if isinstance(x, dict):
            return {name: move(leaf) for name, leaf in x.items()}
        if isinstance(x, list):
            return [move(leaf) for leaf in x]
        is_float = isinstance(x, ndarray) and x.dtype.kind == "f"
        return x + by * next(left) if is_float else x

    return move(inputs)


def typical_size(x: ndarray) -> float:
    finite = np.abs(x[np.isfinite(x)])
    return float(np.median(finite)) if finite.size and np.median(finite) > 0 else 1.0
