"""
Candidates: functions that an implementation may be instead of the specification, from the
conventions, the known faults, and the mistakes that any operation or any attention can show.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product
from typing import Any

import numpy as np

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import map_leaves
from attnverify.conventions.convention import Convention, conventions
from attnverify.conventions.layer_rows import WithArguments
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.layers.mistakes import layer_mistakes
from attnverify.diagnosis.layers.stages import layer_stage_mistakes
from attnverify.diagnosis.mistakes.arithmetic import rounding_mistakes
from attnverify.diagnosis.mistakes.everywhere import common_mistakes
from attnverify.diagnosis.mistakes.gradients import delta_mistakes, gradient_mistakes
from attnverify.diagnosis.mistakes.stages import (
    averaged_or_nan,
    overflowing_beside,
    stage_mistakes,
    unguarded,
)
from attnverify.diagnosis.mistakes.strides import arranged_inputs, stride_mistakes, widened
from attnverify.diagnosis.mistakes.today.rows import todays_mistakes
from attnverify.diagnosis.tiles.scores import tile_mistakes
from attnverify.diagnosis.tiles.walks import walking_mistakes
from attnverify.faults import registry
from attnverify.inputs.recipe import Inputs
from attnverify.inputs.sampling import draw_recipes, shrink_key
from attnverify.judge.case import Case, case_of
from attnverify.judge.observation import Observation, arrays
from attnverify.precision import resolve
from attnverify.reference.staged_attention import Change, evaluate, spec_stages


@dataclass(frozen=True)
class Candidate:
    """
    A function that the implementation may be.

    words   what the specification becomes by it, "the specification with ..."
    answer  what it says to the recipe of an observation
    rank    0 for a convention, 1 for a known fault, 2 for a mistake that any operation can show
    rounds  whether it rounds on its way, so that a number beside a tie may round to the other side
    change  the change of a stage that it is, where it is one
    of      the same as ``answer`` of the inputs and a dtype alone, where no more is needed
    mistake the same of an operation and the inputs, which it may change, where it is such a one
    parts   the mistakes that it joins, in words; none of one alone
    """

    name: str
    words: str
    answer: Callable[[Observation], Any]
    rank: int = 1
    rounds: bool = False
    change: Change | None = None
    of: Callable[[Inputs, str], Any] | None = None
    mistake: Callable[[Operation, Inputs], Any] | None = None
    parts: tuple[str, ...] = ()

    @property
    def simplicity(self) -> tuple[int, int]:
        """A convention before a fault, few words before many."""
        return self.rank, len(self.words)

    def distance(self, seen: Observation, roughly: bool = False) -> float:
        """
        How far it is from an observation; inf where it has no answer to the recipe, and where that
        will do for what is far: ``roughly``.
        """
        if self in seen.distances:
            return seen.distances[self]
        if roughly and (self, FAR) in seen.distances:
            return np.inf
        found = self.distance_anew(seen, roughly)
        seen.distances[(self, FAR) if roughly and found == np.inf else self] = found
        return found

    def distance_anew(self, seen: Observation, roughly: bool) -> float:
        """The same, computed: one diagnosis asks for most of them several times."""
        try:
            with np.errstate(all="ignore"):
                answer = self.answer(seen)
                if roughly and not self.rounds and seen.is_far(answer):
                    return np.inf
                return seen.distance_of_most(answer) if self.rounds else seen.distance(answer)
        except Exception:  # a fault may be anything, also one that crashes on such inputs
            return np.inf


@lru_cache
def candidates(operation: str) -> tuple[Candidate, ...]:
    """Return the conventions, the known faults and the mistakes of an operation."""
    op = CATALOGUE[operation]
    if op.outside is not None:
        own = (from_mutant(*mutant) for mutant in op.outside.mutants())
        return (*own, *(Candidate(said, said, of, rank=2) for said, of in stride_mistakes(op)))
    found = [from_convention(op, convention) for convention in conventions(operation)]
    told = {candidate.words for candidate in found}
    found += [
        from_fault(f)
        for f in registry.read_faults().values()
        if f.operation.name == operation and f.words not in told
    ]
    if op.is_staged:
        found += [from_change(op, words, change) for words, change in stage_mistakes(op)]
        found += [at_once(op, *both) for both in averaged_or_nan(op)]
    if op.is_staged and not op.is_score:
        found += [from_change(op, words, change) for words, change in tile_mistakes()]
    of_layers = (*layer_mistakes(op), *layer_stage_mistakes(op))
    others = (
        *common_mistakes(op),
        *of_layers,
        *gradient_mistakes(op),
        *walking_mistakes(op),
        *todays_mistakes(op),
    )
    found += [from_mistake(op, words, mistake) for words, mistake in others]
    lying = (*stride_mistakes(op), *delta_mistakes(op))
    found += [Candidate(words, words, answer, rank=2) for words, answer in lying]
    found += [
        Candidate(words, words, answer, rank=2, rounds=True)
        for words, answer in rounding_mistakes(op)
    ]
    return tuple(found)


@lru_cache
def pairs(operation: str) -> tuple[Candidate, ...]:
    """
    Two conventions at once, an unguarded softmax, or an overflow beside a number in place of minus
    infinity, in an operation that consists of stages.
    """
    op = CATALOGUE[operation]
    if op.outside is not None:
        return ()
    changes = [(c.words, c.change) for c in conventions(operation) if c.change is not None]
    empty = [(words, change) for words, change in changes if words.startswith("NaN in rows")]
    both = (
        *product(empty, unguarded()),
        *(overflowing_beside(op) if op.is_staged else ()),
        *combinations(changes, 2),
    )
    return tuple(at_once(op, *pair) for pair in both)


def at_once(operation: Operation, one: tuple[str, Change], other: tuple[str, Change]) -> Candidate:
    """Two changes, the first before the second."""
    (words, first), (more, then) = one, other
    told = say.BOTH.format(one=words, other=more)
    return from_change(operation, told, combined(first, then), (words, more))


def combined(first: Change, then: Change) -> Change:
    return lambda s: then(first(s))


def from_convention(operation: Operation, convention: Convention) -> Candidate:
    return Candidate(
        convention.question,
        convention.words,
        lambda seen: convention(operation, seen.inputs, seen.dtype),
        rank=0,
        change=convention.change,
        of=lambda inputs, dtype: convention(operation, inputs, dtype),
        mistake=over_reference(operation, convention.function),
    )


def over_reference(
    operation: Operation, function: Callable[..., Any] | None
) -> Callable[[Operation, Inputs], Any] | None:
    """Other arguments of the operation, of whatever its reference is; None for what is no such."""
    if not isinstance(function, WithArguments):
        return None
    own = getattr(function.function, "__name__", "") == operation.name
    return (lambda other, inputs: function.over(other.reference, inputs)) if own else None


def from_change(
    operation: Operation, words: str, change: Change, parts: tuple[str, ...] = ()
) -> Candidate:
    def of(inputs: Inputs, dtype: str) -> Any:
        return evaluate(change(spec_stages(operation, inputs, dtype)))

    return Candidate(
        words,
        words,
        lambda seen: evaluate(change(seen.stages)),
        rank=2,
        rounds="rounded" in words,
        change=change,
        of=of,
        parts=parts,
    )


def from_mistake(
    operation: Operation, words: str, mistake: Callable[[Operation, Any], Any]
) -> Candidate:
    return Candidate(
        words,
        words,
        lambda seen: mistake(operation, seen.inputs),
        rank=2,
        of=lambda inputs, dtype: mistake(operation, inputs),
        mistake=mistake,
    )


def from_mutant(words: str, answer: Callable[[Any], Any], rank: int) -> Candidate:
    """Return somebody's specification with one thing changed."""
    return Candidate(words, words, lambda seen: answer(seen.inputs), rank=rank, rounds=rank > 2)


def from_fault(fault: registry.Fault) -> Candidate:
    """
    Return the fault on arrays of the recipe's dtype and layout, as a backend is given them: what it
    rounds or misreads it does alike.
    """

    return Candidate(
        fault.name,
        fault.words,
        lambda seen: map_leaves(widened, fault.fresh()(**arranged_inputs(seen))),
        of=lambda inputs, dtype: map_leaves(widened, fault.fresh()(**inputs)),
    )


@lru_cache
def where_they_differ(
    one: Candidate, other: Candidate, operation: str, dtype: str
) -> tuple[Case, ...]:
    """
    Return a few small cases that tell two candidates apart, of recipes that neither was chosen by;
    none where they are one function under two names. What few kernels take comes last.
    """
    recipes, found = draw_recipes(operation, "any", 100, UNSEEN), list[Case]()
    for recipe in sorted(recipes, key=lambda recipe: (bool(recipe.dropout), shrink_key(recipe))):
        case = case_of(recipe, dtype)
        unseen = Observation(case, (), (), (), 0.0)
        try:
            with np.errstate(all="ignore"):
                actual, expected = tuple(arrays(one.answer(unseen))), other.answer(unseen)
        except Exception:  # a fault may crash on what it was not written for
            continue
        limits = (
            None if case.operation.exact else case.strict_bounds(resolve("wide", "", "", dtype))
        )
        bounds = (None,) * len(actual) if limits is None else tuple(arrays(limits))
        if replace(unseen, actual=actual, bounds=bounds).distance(expected) > TWO_ERRORS:
            found.append(case)
        if len(found) == A_FEW:
            break
    return tuple(found)


FAR = "far"
"""Beside a candidate that was only asked roughly."""
A_FEW = 3
TWO_ERRORS = 2.0
"""An answer that is within its bound is within twice of it from any other that is."""
UNSEEN = 2**20
"""The seed of recipes that no diagnosis has met."""
