"""
Diagnosis: what a wrong implementation computes instead, in words.

Its outputs on the largest failing cases are held against every convention, every known fault and
every mistake that such an operation can show. The yardstick is the specification's bound for that
recipe: whoever computes another function in the same arithmetic errs by about as much. A candidate
explains the failure if it is within it in *all* failing cases, and predicts no failure in the cases
that passed; the best is told, and a second one only if these cases cannot tell the two apart. Where
none explains it, two are tried at once, a factor is fitted
(attnverify/diagnosis/factors), and at last what probes have seen is told
(attnverify/diagnosis/localize.py).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnverify.backends.loader import Implementation
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.call_budget import CallBudget
from attnverify.diagnosis.candidates import Candidate, are_equivalent, candidates, pairs
from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.diagnosis.factors.fit import fit_factor
from attnverify.diagnosis.localize import localize
from attnverify.diagnosis.mistakes.arithmetic import output_format
from attnverify.diagnosis.mistakes.narrow_operands import find_narrow_operands
from attnverify.judge.case import Case, case_of
from attnverify.judge.observation import Observation, observe, passed_observation

CLEARLY = 4.0
"""A candidate explains only what the specification does not: it must be nearer by this factor."""
FAR = 1000.0
"""So much nearer must one be that is beyond the bound, which is that of the specification's numbers
and not of its own."""

TWO_ERRORS = 2.0
"""An answer that is within its bound is within twice of it from any other that is."""

NUMERIC = ("wrong number", "not exactly 0", "NaN", "infinity")
"""
The kinds of failure that another function can explain; a crash, a shape or a dtype explains itself.
"""
MOST_FAILING = 8
MOST_PASSING = 24
LARGE = 300_000
"""So many numbers at most go into a case that is called for a diagnosis, if there are others."""


def diagnose(
    implementation: Implementation,
    cases: Sequence[Case],
    others: Sequence[Case] = (),
    among: Sequence[Candidate] | None = None,
    passing: Sequence[Case] = (),
    budget: CallBudget | None = None,
) -> Cause | None:
    """
    Find the likely cause of a failure, or None.

    ``cases`` fail, ``passing`` passed, and ``others`` may do either. Others that fail too may have
    a cause of their own, and are left out where nothing explains both. ``among`` are the
    candidates, by default all of :func:`attnverify.diagnosis.candidates.candidates`.
    """
    budget = budget or CallBudget.of_findings(1, (*cases, *others))
    failing = [o for o in look_at(implementation, choose_failing(cases), budget) if o.wrong]
    if not failing:
        return None
    if any(o.recipe.poison in ("nan", "inf") for o in failing):
        passed = passed_observations(implementation, passing)
        return diagnose_hidden(implementation, failing, passed, among, budget)
    beside = look_at(implementation, [case for case in others if case not in cases], budget)
    passed = [o for o in beside if not o.wrong] + passed_observations(implementation, passing)
    elsewhere = [o for o in beside if o.wrong]
    return explain(implementation, failing, elsewhere, passed, among, budget)


def look_at(
    implementation: Implementation, cases: Sequence[Case], budget: CallBudget
) -> list[Observation]:
    """Observe the cases, for as long as the budget lasts."""
    return observe(implementation, [case for case in cases if budget.affords_case(case)])


def choose_failing(cases: Sequence[Case]) -> list[Case]:
    """
    Choose the largest of the cases, and a few of the others: what is small cannot tell causes
    apart.
    """
    unique = sorted(dict.fromkeys(cases), key=case_size, reverse=True)
    ordinary = [case for case in unique if case_size(case) <= LARGE] or unique[-1:]
    most = 2 * MOST_FAILING // 3
    rest = ordinary[most:]
    spread = rest[:: max(len(rest) // (MOST_FAILING - most), 1)]
    return [*ordinary[:most], *spread[: MOST_FAILING - most]]


def case_size(case: Case) -> int:
    """How many numbers go in."""
    return sum(np.size(x) for x in case.inputs.values() if isinstance(x, np.ndarray))


def passed_observations(
    implementation: Implementation, passing: Sequence[Case]
) -> list[Observation]:
    """What a case that passed says without another call: the answer was the expected one."""
    small = [case for case in passing if case_size(case) <= LARGE]
    step = max(len(small) // MOST_PASSING, 1)
    return [passed_observation(implementation, case) for case in small[::step][:MOST_PASSING]]


def explain(
    implementation: Implementation,
    failing: Sequence[Observation],
    others: Sequence[Observation],
    passed: Sequence[Observation],
    among: Sequence[Candidate] | None,
    budget: CallBudget,
) -> Cause | None:
    """Find the cause of observations."""
    operation = implementation.operation
    if among is None and (narrow := find_narrow_operands(implementation, failing, budget)):
        return Cause(narrow.words, (narrow,))
    tried = candidates(operation.name) if among is None else among
    best = best_matches(tried, [*failing, *others, *passed]) or best_matches(
        tried, [*failing, *passed]
    )
    if not best and among is None:
        best = best_matches(pairs(operation.name), [*failing, *passed])[:1]
    if len(best) == 2 and are_equivalent(best[0][0], best[1][0], operation.name):
        best = best[:1]
    if best:
        return cause_of_candidates(best)
    found = output_format(failing) or fit_factor(operation, [*failing, *passed])
    return Cause(found.words, (found,)) if found else localize(implementation, failing, budget)


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
    return Cause(say.CAUSE_WITHOUT_NAN.format(cause=cause), cause.explanations)


HIDDEN = "0 times NaN"
"""What a hidden NaN shows, whatever else is wrong."""


def cause_of_candidates(best: Sequence[tuple[Candidate, float]]) -> Cause:
    """
    Return the function that the implementation is instead, or the two that these recipes cannot
    tell apart.
    """
    words = tuple(dict.fromkeys(candidate.words for candidate, _ in best))
    share = max(ratio for _, ratio in best)
    return Cause(
        say.EQUALS.format(mistakes=say.EITHER.join(words), share=share),
        tuple(Explanation(each, each) for each in words),
    )


def best_matches(
    among: Sequence[Candidate], seen: Sequence[Observation]
) -> list[tuple[Candidate, float]]:
    """
    Return the candidate that is nearest to all failing observations, with its worst share of the
    yardstick, and one more that is as near; none where nothing but NaN was seen, with which
    everything agrees that gives NaN.
    """
    wrong = sorted((o for o in seen if o.wrong), key=lambda o: o.size)
    if not any(o.is_telling for o in wrong):
        return []
    worst = dict.fromkeys(among, 0.0)
    for observation in wrong:  # small ones are cheap, and few candidates outlive them
        distances = {c: max(ratio, c.distance(observation)) for c, ratio in worst.items()}
        worst = {candidate: ratio for candidate, ratio in distances.items() if ratio <= TWO_ERRORS}
    law = max(observation.distance(observation.expected) for observation in wrong)
    worst = {
        candidate: ratio
        for candidate, ratio in worst.items()
        if ratio < law / (CLEARLY if ratio <= 1 else FAR)
    }
    right = [o for o in seen if not o.wrong]
    worst = {
        c: ratio for c, ratio in worst.items() if all(c.distance(o) <= TWO_ERRORS for o in right)
    }
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
