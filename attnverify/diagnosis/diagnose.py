"""
Diagnosis: what a wrong implementation computes instead, in words.

Its outputs on the largest failing cases are held against every convention, every known fault and
every mistake that such an operation can show. The yardstick is the specification's bound for that
recipe: whoever computes another function in the same arithmetic errs by about as much. A candidate
explains the failure if it is within it in *all* failing cases, and predicts no failure in the cases
that passed; the best is told, and a second one only if these cases cannot tell the two apart. Where
none explains it, two are tried at once, a factor is fitted (attnverify/diagnosis/factors), then
each single change of the specification's own text (attnverify/diagnosis/matching/by_text.py), what
explains a part is told of it (attnverify/diagnosis/matching/parts.py), and at last what probes have
seen (attnverify/diagnosis/whereabouts).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import Operation
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.call_budget import FOR_PROBES, CallBudget, price_of
from attnverify.diagnosis.candidates import (
    Candidate,
    candidates,
    pairs,
    where_they_differ,
)
from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.diagnosis.factors.fit import fit_factor, nothing_but_zeros
from attnverify.diagnosis.factors.numbers import fitted_numbers
from attnverify.diagnosis.matching.best import best_matches, cause_of_candidates, explaining
from attnverify.diagnosis.matching.by_output import explain_by_output
from attnverify.diagnosis.matching.by_text import match_text
from attnverify.diagnosis.matching.other_forwards import SMALL, find_other_forward
from attnverify.diagnosis.matching.parts import explain_in_parts
from attnverify.diagnosis.matching.together import match_several, match_told
from attnverify.diagnosis.matching.told_numbers import (
    of_one_kind_once,
    of_the_file_first,
    without,
)
from attnverify.diagnosis.mistakes.arithmetic import output_format
from attnverify.diagnosis.mistakes.freedoms import find_flushed, find_freedom, find_narrow_step
from attnverify.diagnosis.mistakes.narrow_operands import find_narrow_operands
from attnverify.diagnosis.whereabouts.probes import localize
from attnverify.inputs.sampling import resized
from attnverify.judge.case import Case, case_of
from attnverify.judge.observation import Observation, observe, passed_observation

NUMERIC = ("wrong number", "not exactly 0", "NaN", "infinity")
"""
The kinds of failure that another function can explain; a crash, a shape or a dtype explains itself.
"""
MOST_FAILING = 8
CASES_OF_OTHER_KINDS = 3
MOST_PASSING = 64
A_FEW = 4
"""So many small cases beside of a gradient, which are held against those of other forwards."""
MOST_PLACES = 16
"""In so many more failing cases the place of what is wrong in a gradient must be the same."""
LARGE = 300_000
"""So many numbers at most go into a case that is called for a diagnosis, if there are others."""


def diagnose(
    implementation: Implementation,
    cases: Sequence[Case],
    others: Sequence[Case] = (),
    among: Sequence[Candidate] | None = None,
    passing: Sequence[Case] = (),
    budget: CallBudget | None = None,
    told: frozenset[str] = frozenset(),
) -> Cause | None:
    """
    Find the likely cause of a failure, or None.

    ``cases`` fail, ``passing`` passed, and ``others`` may do either. Others that fail too may have
    a cause of their own, and are left out where nothing explains both. ``among`` are the
    candidates, by default all of :func:`attnverify.diagnosis.candidates.candidates`; ``told`` are
    the mistakes of the output, where it is asked of its gradient.
    """
    cases = [case for case in cases if not case.rows]  # what is judged in rows is not seen whole
    budget = budget or CallBudget.of_findings(1, (*cases, *others), price_of(implementation))
    looks = budget.less(*FOR_PROBES)
    failing = [o for o in look_at(implementation, choose_failing(cases), looks) if o.wrong]
    if not failing:
        return None
    if not any(o.is_telling for o in failing):
        failing += observe_larger(implementation, failing, budget)
    if any(o.recipe.poison not in (None, "finite") for o in failing):
        passed = passed_observations(implementation, passing)
        return diagnose_hidden(implementation, failing, passed, among, budget)
    beside = look_at(implementation, [case for case in others if case not in cases], looks)
    passed = [o for o in beside if not o.wrong] + passed_observations(implementation, passing)
    elsewhere = [o for o in beside if o.wrong]
    seen = {o.case for o in failing}
    more = [case for case in dict.fromkeys(cases) if case not in seen]
    if best := match_told(implementation.operation, told, failing, passed):
        return cause_of_candidates(best)
    return explain(implementation, failing, elsewhere, passed, among, budget, more)


def look_at(
    implementation: Implementation, cases: Sequence[Case], budget: CallBudget
) -> list[Observation]:
    """Observe the cases, for as long as the budget lasts."""
    return observe(implementation, [case for case in cases if budget.affords_case(case)])


def observe_larger(
    implementation: Implementation, failing: Sequence[Observation], budget: CallBudget
) -> list[Observation]:
    """
    Where nothing but NaN came out, with which too much agrees: observe the same with more rows and
    keys, and with scores of both signs about as large as exponentials can be, where that fails too
    and gives numbers beside.
    """
    larger = [
        resized(
            o.recipe, {k: o.recipe.sizes[k] + n for k, n in MORE.items() if k in o.recipe.sizes}
        )
        for o in failing[:2]
    ]
    if LARGE_SCORES in failing[0].case.operation.families:
        larger += [
            replace(each, values=each.values | {"family": LARGE_SCORES})
            for each in larger
            if each.values["family"] != LARGE_SCORES
        ]
    seen = look_at(implementation, [case_of(each, failing[0].dtype) for each in larger], budget)
    return [o for o in seen if o.wrong and o.is_telling]


MORE, LARGE_SCORES = {"N": 8, "M": 4}, "large"


def choose_failing(cases: Sequence[Case]) -> list[Case]:
    """
    Choose the largest of the cases, and a few of the others: what is small cannot tell causes
    apart. The smallest is always there, for it is shown beside the cause.
    """
    unique = sorted(dict.fromkeys(cases), key=case_size, reverse=True)
    ordinary = [case for case in unique if case_size(case) <= LARGE] or unique[-1:]
    most = 2 * MOST_FAILING // 3
    rest = ordinary[most:]
    spread = rest[:: max(len(rest) // (MOST_FAILING - most), 1)]
    few = [*spread[: MOST_FAILING - most - 1], *rest[-1:]]
    return [*ordinary[:most], *dict.fromkeys(few)]


def choose_of_other_kinds(failing: Mapping[str, Sequence[Case]], what: str) -> list[Case]:
    """Choose a few cases whose numbers fail in another way, which may have the same cause."""
    return [
        case
        for kind, cases in failing.items()
        if kind != what and {kind, what} <= set(NUMERIC)
        for case in choose_failing(cases)[:CASES_OF_OTHER_KINDS]
    ]


def case_size(case: Case) -> int:
    """How many numbers go in."""
    return sum(np.size(x) for x in case.inputs.values() if isinstance(x, np.ndarray))


def passed_observations(
    implementation: Implementation, passing: Sequence[Case]
) -> list[Observation]:
    """
    What a case that passed says without another call: the answer was the expected one, but where a
    bound is infinite, which lets any pass.
    """
    small = [case for case in passing if case_size(case) <= LARGE]
    step = max(len(small) // MOST_PASSING, 1)
    seen = [passed_observation(implementation, case) for case in small[::step][:MOST_PASSING]]
    return [o for o in seen if all(b is None or np.isfinite(b).all() for b in o.bounds)]


def explain(
    implementation: Implementation,
    failing: Sequence[Observation],
    others: Sequence[Observation],
    passed: Sequence[Observation],
    among: Sequence[Candidate] | None,
    budget: CallBudget,
    more: Sequence[Case] = (),
) -> Cause | None:
    """Find the cause of observations; ``more`` are failing cases that were not looked at."""
    operation = implementation.operation
    certain = without_chance(failing)
    if among is None and (narrow := find_narrow_operands(implementation, failing, budget)):
        return Cause(narrow.words, (narrow,))
    if among is None and operation.outside and (zeros := nothing_but_zeros(failing)):
        return Cause(zeros.words, (zeros,))
    best = match_candidates(operation, failing, others, passed, among)
    if not best and 0 < len(certain) < len(failing):
        best = match_candidates(operation, certain, without_chance(others), passed, among)
    if among is None and not best and (flushed := find_flushed(implementation, failing)):
        return Cause(flushed.words, (flushed,))  # tiny numbers may hide another mistake
    if best := tell_apart(implementation, best, failing[0].dtype, budget):
        return cause_of_candidates(best)
    looks = budget.less(*FOR_PROBES)
    if among is None and operation.is_gradient:
        few = sorted((case for case in more if case_size(case) <= SMALL), key=case_size)[-A_FEW:]
        fit = [*failing, *others, *(o for o in look_at(implementation, few, looks) if o.wrong)]
        if other := find_other_forward(operation, fit, passed):
            return other
    if found := output_format(failing) or fit_factor(operation, [*failing, *passed]):
        return Cause(found.words, (found,))
    if among is None and (freedom := find_freedom(implementation, failing)):
        return Cause(freedom.words, (freedom,))
    tried = candidates(operation.name) if among is None else among
    further = look_at(implementation, choose_failing(more), looks) if more else []
    wrong = [*failing, *further]
    several = match_several(operation, wrong, others, passed) if among is None else []
    if among is None and not several and 0 < len(certain) < len(failing):
        left = without_chance(wrong), without_chance(others)
        several = match_several(operation, *left, passed)
    if best := tell_apart(implementation, several, failing[0].dtype, budget):
        return cause_of_candidates(best)
    if operation.is_gradient and (each := explain_by_output(tried, [*wrong, *passed])):
        return each
    if among is None and (text := match_text(implementation, wrong, passed, budget)):
        return cause_of_candidates(text)
    if among is None and (narrow := find_narrow_step(implementation, wrong)):
        return Cause(narrow.words, (narrow,))
    if part := explain_in_parts(tried, wrong, passed):
        return part
    rest = look_at(implementation, more[:MOST_PLACES], budget) if operation.is_gradient else []
    return localize(implementation, [*failing, *(o for o in rest if o.wrong)], passed, budget)


HUGE = 1e12
"""Beyond this no answer is but those that large numbers in hidden slots have reached."""


def without_chance(seen: Sequence[Observation]) -> list[Observation]:
    """
    Leave out the answers that numbers of 1e30 in hidden slots have reached, where nothing explains
    all: which of those has the largest score may hang on the last bit, and on the processor.
    """
    return [
        o
        for o in seen
        if o.recipe.poison != "finite" or not any((np.abs(x) > HUGE).any() for x in o.actual)
    ]


def match_candidates(
    operation: Operation,
    failing: Sequence[Observation],
    others: Sequence[Observation],
    passed: Sequence[Observation],
    among: Sequence[Candidate] | None,
) -> list[tuple[Candidate, float]]:
    """
    Find the candidate that explains everything, or two that these recipes cannot tell apart; of two
    at once the nearest pair.
    """
    tried = candidates(operation.name) if among is None else among
    best = best_matches(tried, [*failing, *others, *passed]) or best_matches(
        tried, [*failing, *passed]
    )
    if not best and among is None:
        tried = pairs(operation.name) or tuple(fitted_numbers(operation, failing))
        best = best_matches(tried, [*failing, *passed])
    return best


def tell_apart(
    implementation: Implementation,
    best: list[tuple[Candidate, float]],
    dtype: str,
    budget: CallBudget,
) -> list[tuple[Candidate, float]]:
    """
    Of candidates that these recipes cannot tell apart, return those that explain what the
    implementation says to others, on which they differ; at most two, and one where they differ on
    none.
    """
    if len(best) < 2:
        return best
    first, *others = best = of_the_file_first(best, implementation)
    for other in reversed(others):
        cases = where_they_differ(first[0], other[0], implementation.operation.name, dtype)
        found = look_at(implementation, cases, budget)
        if not found and cases and not all(budget.left):
            break  # nobody knows
        # where none answers, they differ in nothing, or in what the implementation does not take
        left = reduce(explaining, found, best) if found else without(best, other, implementation)
        if len(left) < len(best):
            return tell_apart(implementation, left, dtype, budget)
    return of_one_kind_once(best, implementation)[:2]


def diagnose_hidden(
    implementation: Implementation,
    failing: Sequence[Observation],
    passed: Sequence[Observation],
    among: Sequence[Candidate] | None,
    budget: CallBudget,
) -> Cause | None:
    """
    What fails with NaN in hidden slots is asked again with ordinary numbers there: where it is
    right, the mask is, and so are the weights.
    """
    clean = [case_of(replace(o.recipe, poison=None), o.dtype) for o in failing[:3]]
    again = look_at(implementation, clean, budget)
    wrong = [o for o in again if o.wrong]
    if not again:
        return None
    if right := len(again) - len(wrong):
        template = say.ZERO_TIMES_NAN_IN_SOME if wrong else say.ZERO_TIMES_NAN
        words = template.format(right=right, cases=len(again))
        return Cause(words, (Explanation(HIDDEN, say.ZERO_TIMES_NAN),))
    cause = explain(implementation, wrong, (), passed, among, budget)
    if cause is None or len(cause.explanations) > 1:  # few cases: what they cannot tell apart
        return Cause(say.WRONG_WITHOUT_NAN)
    words = say.CAUSE_WITHOUT_NAN.format(cause=cause)
    best = match_candidates(implementation.operation, wrong, (), passed, among)
    if best and any(shows_nan_beside(o, best[0][0]) for o in failing):
        words = say.BESIDES_ZERO_TIMES_NAN.format(cause=words)
    return Cause(words, cause.explanations)


def shows_nan_beside(seen: Observation, candidate: Candidate) -> bool:
    """
    Whether NaN comes out where a candidate gives a number to the same inputs: what is hidden has no
    weight in it, and is multiplied all the same.
    """
    try:
        with np.errstate(all="ignore"):
            numbers = seen.asked_for(candidate.answer(seen))
    except Exception:  # a fault may crash on NaN
        return False
    return all(x.shape == y.shape for x, y in zip(seen.actual, numbers, strict=True)) and any(
        bool((np.isnan(x) & np.isfinite(y)).any())
        for x, y in zip(seen.actual, numbers, strict=True)
    )


HIDDEN = "0 times NaN"
"""What a hidden NaN shows, whatever else is wrong."""
