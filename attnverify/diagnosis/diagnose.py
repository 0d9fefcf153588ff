"""
Diagnosis: what a wrong implementation computes instead, in words.

Its outputs on several recipes are held against every convention and every known fault of the
operation. The yardstick is the specification's bound for that recipe: whoever computes another
function in the same arithmetic errs by about as much. A candidate explains the failure if *all*
recipes, passing ones included, are within its bound; the best is told, and a second one only if
these recipes cannot tell the two apart. Where none explains it, a factor is fitted
(attnverify/diagnosis/factor_fit.py), and where no factor does, probes say which stage is wrong
first (attnverify/diagnosis/localize.py).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.array_libraries import to_dtype
from attnverify.backends.loader import Implementation
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import map_leaves
from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.diagnosis.common_mistakes import common_mistakes
from attnverify.diagnosis.conventions import Convention, conventions
from attnverify.diagnosis.factor_fit import fit_factor
from attnverify.diagnosis.localize import localize
from attnverify.faults import registry
from attnverify.inputs.memory_layouts import arrange
from attnverify.inputs.recipe import Inputs, layout_kinds
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.judge.observation import Observation, arrays, observe
from attnverify.precision import resolve

SECONDS = 2.0
CLEARLY = 4.0
"""A candidate explains only what the specification does not: it must be nearer by this factor."""
NUMERIC = ("wrong number", "not exactly 0", "NaN", "infinity")
"""
The kinds of failure that another function can explain; a crash, a shape or a dtype explains itself.
"""


@dataclass(frozen=True)
class Candidate:
    """
    A function that the implementation may be.

    words   what the specification becomes by it, "the specification with ..."
    answer  what it says to the recipe of an observation
    rank    0 for a convention, 1 for a known fault, 2 for a slip that any operation can show
    """

    name: str
    words: str
    answer: Callable[[Observation], Any]
    rank: int = 1

    @property
    def simplicity(self) -> tuple[int, int]:
        """A convention before a fault, few words before many."""
        return self.rank, len(self.words)


def diagnose(
    implementation: Implementation,
    cases: Sequence[Case],
    others: Sequence[Case] = (),
    among: Sequence[Candidate] | None = None,
    seconds: float = SECONDS,
) -> Cause | None:
    """
    The likely cause of a failure, or None.

    ``cases`` are those that fail, as they were drawn and shrunk, and ``others`` a few that may
    pass: what explains only some is no explanation. Others that fail too may have a cause of their
    own, and are left out where nothing explains both. ``among`` are the candidates, by default all
    of :func:`candidates`.
    """
    start = time.monotonic()
    failing = observe(implementation, cases, until=start + seconds / 4)
    if not any(observation.wrong for observation in failing):
        return None
    beside = observe(
        implementation,
        [case for case in others if case not in cases],
        until=start + seconds / 2,
    )
    seen = failing + [observation for observation in beside if not observation.wrong]
    among = candidates(implementation.operation.name) if among is None else among
    best = best_matches(among, failing + beside, start + seconds) or best_matches(
        among, seen, start + seconds
    )
    if best:
        best = (
            best[:1]
            if len(best) == 2
            and are_equivalent(best[0][0], best[1][0], implementation.operation.name)
            else best
        )
        return cause_of_candidates(best)
    factor = fit_factor(implementation.operation, seen, start + seconds)
    if factor is not None:
        return Cause(factor.words, (factor,))
    return localize(implementation, seen)


def cause_of_candidates(best: Sequence[tuple[Candidate, float]]) -> Cause:
    """The function that the implementation is instead, or the two that these recipes cannot tell
    apart."""
    words = tuple(dict.fromkeys(candidate.words for candidate, _ in best))
    share = max(ratio for _, ratio in best)
    return Cause(
        f"equals the specification with {' or with '.join(words)} ({share:.2g}x of the bound)",
        tuple(Explanation(each, each) for each in words),
    )


@lru_cache
def are_equivalent(one: Candidate, other: Candidate, operation: str) -> bool:
    """
    Whether two candidates are one function under two names: on recipes that neither was chosen by,
    they differ by less than float32 may err.
    """
    for recipe in draw_recipes(operation, "any", 100, UNSEEN):
        case = case_of(recipe, "float32")
        unseen = Observation(case, (), (), (), 0.0)
        try:
            with np.errstate(all="ignore"):
                actual, expected = tuple(arrays(one.answer(unseen))), other.answer(unseen)
        except Exception:  # a fault may crash on what it was not written for
            return False
        limits = case.bounds(WIDE)
        bounds = (None,) * len(actual) if limits is None else tuple(arrays(limits))
        if replace(unseen, actual=actual, bounds=bounds).distance(expected) > 1:
            return False
    return True


UNSEEN = 2**20
"""The seed of recipes that no diagnosis has met."""

WIDE = resolve("wide", "", "", "float32")


@lru_cache
def candidates(operation: str) -> tuple[Candidate, ...]:
    """The conventions, the known faults and the slips of an operation."""
    known, _ = registry.read_faults()
    found = [
        from_convention(CATALOGUE[operation], convention) for convention in conventions(operation)
    ]
    found += [from_fault(f) for f in known.values() if f.operation.name == operation]
    return (
        *found,
        *(
            from_common_mistake(CATALOGUE[operation], words, slip)
            for words, slip in common_mistakes(CATALOGUE[operation])
        ),
    )


def from_convention(operation: Operation, convention: Convention) -> Candidate:
    return Candidate(
        convention.question,
        convention.words,
        lambda seen: convention(operation, seen.inputs, seen.dtype),
        rank=0,
    )


def from_fault(fault: registry.Fault) -> Candidate:
    """
    The fault on arrays of the recipe's dtype and layout, as a backend is given them: what it rounds
    or misreads it does alike.
    """

    def answer(seen: Observation) -> Any:
        kinds = layout_kinds(seen.recipe, len(seen.inputs))
        given = {
            name: arranged(x, seen.dtype, kind)
            for (name, x), kind in zip(seen.inputs.items(), kinds, strict=True)
        }
        return map_leaves(widened, fault.fresh()(**given))

    return Candidate(fault.name, fault.words, answer)


def from_common_mistake(
    operation: Operation, words: str, slip: Callable[[Operation, Inputs], Any]
) -> Candidate:
    return Candidate("slip", words, lambda seen: slip(operation, seen.inputs), rank=2)


def arranged(tree: Any, dtype: str, kind: str) -> Any:
    return map_leaves(
        lambda leaf: (
            arrange(to_dtype, leaf.copy(), dtype, kind) if isinstance(leaf, ndarray) else leaf
        ),
        tree,
    )


def widened(leaf: Any) -> Any:
    return (
        leaf.astype(np.float64)
        if isinstance(leaf, ndarray) and leaf.dtype.kind not in "biu"
        else leaf
    )


def best_matches(
    among: Sequence[Candidate], seen: Sequence[Observation], until: float
) -> list[tuple[Candidate, float]]:
    """
    The candidate that is nearest to all observations, with its worst share of the yardstick, and
    one more that is as near.
    """
    worst = dict.fromkeys(among, 0.0)
    for observation in sorted(
        seen, key=lambda o: (not o.wrong, o.size)
    ):  # small ones are cheap, and few candidates outlive them
        if time.monotonic() > until:
            break
        distances = {
            candidate: max(ratio, distance(candidate, observation))
            for candidate, ratio in worst.items()
        }
        worst = {candidate: ratio for candidate, ratio in distances.items() if ratio <= 1}
    law = max((observation.distance(observation.expected) for observation in seen), default=0.0)
    worst = {candidate: ratio for candidate, ratio in worst.items() if ratio < law / CLEARLY}
    ranked = sorted(
        worst.items(), key=lambda found: (rounded_ratio(found[1]), *found[0].simplicity)
    )
    return [
        found
        for found in ranked[:2]
        if rounded_ratio(found[1]) <= 1.25 * rounded_ratio(ranked[0][1])
    ]


def rounded_ratio(ratio: float) -> float:
    """Differences below a hundredth of the bound say nothing."""
    return round(ratio, 2) + 0.01


def distance(candidate: Candidate, observation: Observation) -> float:
    """How far the candidate is from an observation; inf where it has no answer to the recipe."""
    try:
        with np.errstate(all="ignore"):
            return observation.distance(candidate.answer(observation))
    except (
        Exception
    ):  # a fault may be anything, also one that crashes on inputs for which it was not written
        return inf
