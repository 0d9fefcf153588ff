"""
The candidates that explain all that was seen, the nearest first.
"""

from collections.abc import Sequence

import numpy as np

from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.candidates import TWO_ERRORS, Candidate
from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.diagnosis.factors.least_squares import FAR, is_far_nearer
from attnverify.diagnosis.public_conventions import PUBLIC
from attnverify.judge.observation import Observation

CLEARLY = 4.0
"""A candidate explains only what the specification does not: it must be nearer by this factor."""
MOST_ALIKE = 24
"""So many candidates at most that these recipes cannot tell apart are held apart by others."""


def cause_of_candidates(best: Sequence[tuple[Candidate, float]]) -> Cause:
    """
    Return the function that the implementation is instead, or the two that these recipes cannot
    tell apart.
    """
    words = tuple(dict.fromkeys(candidate.words for candidate, _ in best))
    share = max(ratio for _, ratio in best)
    told = say.OF_THE_BOUND.format(share=share) if share else say.EXACTLY
    named = (
        say.AS_IN.format(mistake=each, packages=PUBLIC[each]) if each in PUBLIC else each
        for each in words
    )
    alone = tuple(dict.fromkeys(c.words for c, _ in best if not c.parts))
    return Cause(  # several at once are no mistake beside those that they are
        say.EQUALS.format(mistakes=say.EITHER.join(named), share=told),
        tuple(Explanation.of(each) for each in alone or best[0][0].parts),
        together=not alone,
    )


def best_matches(
    among: Sequence[Candidate], seen: Sequence[Observation]
) -> list[tuple[Candidate, float]]:
    """
    Return the candidate that is nearest to all failing observations, with its worst share of the
    yardstick, and those that are as near. Where the specification is beyond it, the candidate must
    be nearer, and where it is not, another function. None where nothing but NaN was seen, with
    which everything agrees that gives NaN.
    """
    wrong = sorted((o for o in seen if o.wrong), key=lambda o: o.size)
    if not any(o.is_telling for o in wrong):
        return []
    worst = dict.fromkeys(among, 0.0)
    for observation in wrong:  # small ones are cheap, and few candidates outlive them
        distances = {candidate: candidate.distance(observation) for candidate in worst}
        law = observation.law
        worst = {
            candidate: max(worst[candidate], ratio)
            for candidate, ratio in distances.items()
            if is_near(candidate, observation)
            and (ratio < law or (law <= 1 and ratio != law) or candidate.rounds)
        }
    worst = {
        candidate: ratio
        for candidate, ratio in worst.items()
        if ratio < law_of(candidate, wrong) / (CLEARLY if ratio <= 1 else FAR)
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
        for found in ranked[:MOST_ALIKE]
        if rounded_ratio(found[1]) <= 1.25 * rounded_ratio(ranked[0][1])
    ]


def is_near(candidate: Candidate, seen: Observation) -> bool:
    """
    Whether a candidate is within two errors of an observation, or far nearer than the specification
    wherever it is not.
    """
    ratio = candidate.distance(seen)
    return ratio <= TWO_ERRORS or is_far_nearer(seen, lambda: candidate.answer(seen), ratio)


def explaining(
    among: Sequence[tuple[Candidate, float]], seen: Observation
) -> list[tuple[Candidate, float]]:
    """
    Return the candidates that explain one observation more: those within two errors of it, or where
    none is, those that are far nearer than the specification.
    """
    distances = [candidate.distance(seen) for candidate, _ in among]
    nearest, law = min(distances, default=np.inf), seen.law
    most = CLEARLY * nearest if TWO_ERRORS < nearest < law / FAR else TWO_ERRORS
    return [each for each, far in zip(among, distances, strict=True) if far <= most]


def law_of(candidate: Candidate, wrong: Sequence[Observation]) -> float:
    """How far the specification is from what was seen, by the yardstick of the candidate."""
    return max(o.law_of_most if candidate.rounds else o.law for o in wrong)


def rounded_ratio(ratio: float) -> float:
    """Differences below a hundredth of the bound say nothing."""
    return round(ratio, 2) + 0.01
