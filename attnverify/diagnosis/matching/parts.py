"""
Candidates that explain a part of what was seen, with the condition that tells this part from the
rest.

A kernel may hold two mistakes, or one in a branch of its own. A candidate is told of a part if it
explains several failing cases, among them one of many numbers, and a condition separates these from
the failing cases that it does not explain and from the passes in which it would fail.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import comb, log2

from attnverify.catalogue.field_words import HIDDEN, say_field
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.candidates import TWO_ERRORS, Candidate
from attnverify.diagnosis.cause import Cause
from attnverify.diagnosis.matching.best import (
    CLEARLY,
    cause_of_candidates,
    law_of,
)
from attnverify.diagnosis.regions.condition_search import find_conjunction
from attnverify.inputs.conditions import parse_condition
from attnverify.judge.case import Case
from attnverify.judge.observation import Observation

SMALL_ENOUGH = 15_000
"""So many numbers at most go into a case that every candidate is held against."""
SEVERAL = 3
"""So many failing cases at least must a candidate explain."""
NUMBERS = 32
"""So many numbers at least must come out of one of them: few numbers are anything."""
NO_BRANCH = frozenset(
    (
        *("layout", "values", "poison"),
        *(say_field("mask.pattern", "=", drawn) for drawn in HIDDEN if drawn != "empty_rows"),
    )
)
"""
What no branch of a kernel hangs on: where its arrays lie, their numbers, how a mask was drawn, but
that rows see no key.
"""
BITS = 8
"""As many at least must it take to say which of the cases are the part: some hundred conditions are
tried."""


@dataclass(frozen=True, eq=False)
class Part:
    """
    What a candidate explains.

    ratio     its worst share of the bound there; conditions: what tells this part from the rest
    explained the failing cases that it explains, and those that it does not
    """

    candidate: Candidate
    ratio: float
    explained: tuple[Observation, ...]
    others: tuple[Observation, ...]
    conditions: tuple[str, ...] = ()

    @property
    def cause(self) -> Cause:
        """What it says of the implementation."""
        return cause_of_candidates([(self.candidate, self.ratio)])


def explain_in_parts(
    tried: Sequence[Candidate],
    failing: Sequence[Observation],
    passed: Sequence[Observation],
) -> Cause | None:
    """Find the candidate that explains a part, and what can be said of the others."""
    telling = [o for o in failing if o.wrong and o.is_telling]
    wrong = [o for o in telling if o.size <= SMALL_ENOUGH]
    large = [o for o in telling if o.size > SMALL_ENOUGH]
    right = [o for o in passed if o.size <= SMALL_ENOUGH]
    parts = sorted(parts_of(tried, wrong), key=lambda part: -len(part.explained))
    found = plainest([told for one in parts if (told := separated(one, right, large))])
    return describe_part(found[0], found[1:]) if found else None


def plainest(parts: Sequence[Part]) -> list[Part]:
    """
    Of the parts that explain the same cases the one with the fewest conditions, and the simplest
    candidate; what explains the most comes first.
    """
    found: dict[frozenset[Case], Part] = {}
    for part in sorted(parts, key=lambda p: (len(p.conditions), *p.candidate.simplicity)):
        found.setdefault(frozenset(o.case for o in part.explained), part)
    return sorted(found.values(), key=lambda p: -len(p.explained))


def parts_of(tried: Sequence[Candidate], wrong: Sequence[Observation]) -> Iterator[Part]:
    """Yield what each candidate explains, where that is something."""
    cheapest_first = sorted(wrong, key=lambda o: o.size)
    for candidate in tried:
        if explains_too_few(candidate, cheapest_first):
            continue
        ratios = {o.case: candidate.distance(o, roughly=True) for o in wrong}
        near = [o for o in wrong if ratios[o.case] <= 1.0]
        own = [o for o in near if ratios[o.case] <= law_of(candidate, [o]) / CLEARLY]
        if len(own) >= SEVERAL and max(count_numbers(o) for o in own) >= NUMBERS:
            others = tuple(o for o in wrong if o not in own and ratios[o.case] > TWO_ERRORS)
            yield Part(candidate, max(ratios[o.case] for o in own), tuple(own), others)


def explains_too_few(candidate: Candidate, wrong: Sequence[Observation]) -> bool:
    """Tell whether too many are not explained; the last, and dearest, are not asked then."""
    spare = len(wrong) - SEVERAL
    for o in wrong:
        if spare < 0:
            return True
        spare -= not candidate.distance(o, roughly=True) <= 1.0
    return spare < 0


def count_numbers(o: Observation) -> int:
    """How many numbers come out."""
    return sum(x.size for x in o.actual)


def separated(
    part: Part, right: Sequence[Observation], large: Sequence[Observation]
) -> Part | None:
    """
    Return the part with the conditions that hold of it and of nothing that it contradicts, among
    the large cases neither.
    """
    candidate, inside = part.candidate, [o.case for o in part.explained]
    spoilt = [o for o in right if candidate.distance(o) > TWO_ERRORS]
    outside = [o.case for o in (*part.others, *spoilt)]
    conditions = find_conjunction(inside, outside, NO_BRANCH)
    holds = [parse_condition(text) for text in conditions]
    if not conditions or any(all(each(case) for each in holds) for case in outside):
        return None
    if is_chance(len(inside), len(outside)):
        return None
    there = [o for o in large if all(each(o.case) for each in holds)]
    if any(candidate.distance(o) > 1 for o in there):
        return None
    return replace(part, conditions=conditions)


def is_chance(inside: int, outside: int) -> bool:
    """Whether one of the conditions that are tried may tell so few cases apart by chance."""
    return log2(comb(inside + outside, inside)) < BITS


def describe_part(part: Part, further: Sequence[Part]) -> Cause | None:
    """
    Tell the part, where it is, and of the others what explains all of them; None where it is not
    by far the larger part and nothing does.
    """
    where = " and ".join(part.conditions)
    own, *_ = part.cause.explanations
    own = replace(own, words=say.WHEN.format(cause=own.words, where=where))
    if not part.others:
        return Cause(say.WHEN.format(cause=part.cause, where=where), (own,))
    others = {o.case for o in part.others}
    rest = next((p for p in further if others <= {o.case for o in p.explained}), None)
    if rest is None and len(part.explained) < 2 * len(others):
        return None
    if rest is None:
        cases = len(part.explained) + len(others)
        number = len(part.explained)
        words = say.PART.format(cause=part.cause, where=where, explained=number, cases=cases)
        return Cause(words, (own,))
    (other,) = rest.cause.explanations
    words = say.TWO_PARTS.format(cause=part.cause, where=where, other=other.words)
    return Cause(words, (own, other))
