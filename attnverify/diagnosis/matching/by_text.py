"""
The single change of the specification's text that explains what no table of mistakes does.

Some thousand changes are held against a small case; what is left, against the others. Of so many
one may fit by chance: the kernel is asked for further cases, in which it differs from the
specification, and what these cannot tell apart is one function, of which the simplest is told.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy import ndarray

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import Operation
from attnverify.diagnosis.call_budget import CallBudget
from attnverify.diagnosis.candidates import TWO_ERRORS, UNSEEN, Candidate, from_mistake
from attnverify.diagnosis.matching.best import best_matches
from attnverify.diagnosis.mistakes.specification import text_mistakes
from attnverify.inputs.sampling import draw_recipes, shrink_key
from attnverify.judge.case import case_of
from attnverify.judge.observation import Observation, observe, passed_observation

Match = tuple[Candidate, float]
SMALL, FEW = 15_000, 8
"""So many numbers at most go into a case that is held against the specification's loops, and so
many cases."""
MOST = 2_000
"""So many changes at most are tried, those of a sign before those of a name."""
PASSES = 12
"""So many cases that passed a change is held against."""
FEWEST = 2
"""So many at least."""
CONFIRMED = 3
"""So many of them the kernel is asked, in which a change differs from the specification."""


def match_text(
    implementation: Implementation,
    failing: Sequence[Observation],
    passed: Sequence[Observation],
    budget: CallBudget,
) -> list[Match]:
    """Find the change that explains what failed, or two that no call tells apart."""
    operation = implementation.operation
    small = [o for o in failing if o.wrong and o.is_telling and o.size <= SMALL]
    wrong = sorted((o for o in small if o.recipe.poison is None), key=lambda o: o.size)[:FEW]
    if operation.outside is not None or not wrong:
        return []
    tried = candidates_of_text(operation, wrong[0])
    for o in wrong:
        number = most_wrong(o)
        tried = [candidate for candidate in tried if is_like(candidate, o, number)]
    right = sorted((o for o in passed if o.size <= SMALL), key=lambda o: -o.size)
    best = best_matches(tried, [*wrong, *right[:: max(len(right) // PASSES, 1)][:PASSES]])
    return confirmed(implementation, best, wrong[0].dtype, budget)


def candidates_of_text(operation: Operation, seen: Observation) -> list[Candidate]:
    """Make a candidate of each change of the text that the inputs of an observation come to."""
    found = sorted(text_mistakes(operation, seen.inputs), key=lambda each: each[2])
    return [
        replace(from_mistake(operation, words, mistake), rank=rank)
        for words, mistake, rank in found[:MOST]
    ]


def is_like(candidate: Candidate, seen: Observation, number: int) -> bool:
    """Tell whether one of a candidate's outputs is near what was seen."""
    answer = answer_of(candidate, seen)
    if not answer or [x.shape for x in answer] != [x.shape for x in seen.actual]:
        return False
    is_far = seen.is_plainly_far(number, answer[number])
    return not is_far and bool(seen.compared(number, answer[number]).budget <= TWO_ERRORS)


def answer_of(candidate: Candidate, seen: Observation) -> list[ndarray]:
    """What a candidate says to the inputs of an observation; nothing where it makes no sense."""
    try:
        with np.errstate(all="ignore"):
            return seen.asked_for(candidate.answer(seen))
    except Exception:
        return []


def has_shapes(candidate: Candidate, seen: Observation) -> bool:
    """Tell whether an answer has the shapes that it should: of others little can be told."""
    return [x.shape for x in answer_of(candidate, seen)] == [x.shape for x in seen.expected]


def most_wrong(seen: Observation) -> int:
    """Which output is furthest from the specification's."""
    if [x.shape for x in seen.actual] != [x.shape for x in seen.expected]:
        return 0
    ratios = [seen.compared(number, x).budget for number, x in enumerate(seen.expected)]
    return int(np.argmax(ratios))


def confirmed(
    implementation: Implementation, best: Sequence[Match], dtype: str, budget: CallBudget
) -> list[Match]:
    """
    Return the first of those that explain further cases too, and one that differs from it where the
    kernel was not asked; none where few cases show how it differs from the specification.
    """
    asked, left, unlike = 0, [*best], list[Match]()
    for law in further_cases(implementation, dtype) if best else ():
        own = left[0][0]
        is_wrong = has_shapes(own, law) and not own.distance(law) <= TWO_ERRORS
        unlike = [x for x in left[1:] if differ(own, x[0], law)]
        if not unlike and (asked >= CONFIRMED or not is_wrong):
            continue
        if not budget.affords_case(law.case):
            break
        for o in observe(implementation, [law.case]):
            left = [x for x in left if x[0].distance(o) <= TWO_ERRORS]
            asked += is_wrong
        unlike = []
        if not left:
            break
    return [*left[:1], *unlike[:1]] if asked >= FEWEST else []


def further_cases(implementation: Implementation, dtype: str) -> Iterator[Observation]:
    """Yield small cases of recipes that no diagnosis has met, as one that is right answers them."""
    recipes = draw_recipes(implementation.operation.name, "any", 100, UNSEEN)
    for recipe in sorted(recipes, key=lambda r: (bool(r.dropout), shrink_key(r)))[::-1]:
        case = case_of(recipe, dtype)
        if recipe.poison is None and not case.rows:
            seen = passed_observation(implementation, case)
            if seen.size <= SMALL:
                yield seen


def differ(one: Candidate, other: Candidate, law: Observation) -> bool:
    """Tell whether two candidates are unlike in a case."""
    said = replace(law, actual=tuple(answer_of(one, law)))
    return not other.distance(said) <= TWO_ERRORS
