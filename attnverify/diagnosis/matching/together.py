"""
Two and three mistakes at once: the fewest that together explain all that failed.

A failing case rarely shows all mistakes: without a mask only the scale is wrong. What explains some
of the cases alone is the ground on which another one is tried for the smallest case that is left,
and again. Where no case shows one alone, two at once are held against a small one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import combinations
from typing import Any

import numpy as np

from attnverify.catalogue.operation import Operation
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.candidates import TWO_ERRORS, Candidate, candidates, combined, from_change
from attnverify.diagnosis.cause import Explanation
from attnverify.diagnosis.layers.in_stages import with_reference
from attnverify.diagnosis.matching.best import CLEARLY, best_matches, law_of
from attnverify.diagnosis.matching.parts import count_numbers
from attnverify.inputs.recipe import Inputs
from attnverify.judge.observation import Observation, arrays
from attnverify.reference import layers

MOST = 3
"""So many mistakes at most are joined."""
STATES = 4
"""So many sets of mistakes at most are carried on."""
SMALL = 15_000
"""So many numbers at most go into a case that every joined candidate is held against."""
PAIRED = 4_000
"""The same where every two are tried."""
CASES = 10
NUMBERS = 32
"""So many numbers at least must each further mistake explain: few numbers are anything."""


def match_several(
    operation: Operation,
    failing: Sequence[Observation],
    others: Sequence[Observation],
    passed: Sequence[Observation],
) -> list[tuple[Candidate, float]]:
    """
    Find two or three mistakes that together explain what failed, and what failed in another way
    too, or else without it; several sets where these cases cannot tell them apart.
    """
    tried = candidates(operation.name)
    for wrong in ([*failing, *others], failing) if others else (failing,):
        seen = [*wrong, *passed]
        if best := best_matches(find_together(operation, tried, seen), seen):
            return best
    return []


def match_told(
    operation: Operation,
    told: frozenset[str],
    failing: Sequence[Observation],
    passed: Sequence[Observation],
) -> list[tuple[Candidate, float]]:
    """
    Find one of the mistakes of these names, or several at once, that explain what failed: those
    told of an output are asked first of its gradient.
    """
    own = [c for c in candidates(operation.name) if Explanation.of(c.words).name in told]
    for many in range(1, min(len(own), MOST) + 1):
        sets = (joined_all(operation, some) for some in combinations(own, many))
        if best := best_matches([one for one in sets if one], [*failing, *passed]):
            return best[:1]
    return []


def joined_all(operation: Operation, some: Sequence[Candidate]) -> Candidate | None:
    """Return several candidates at once; None where one cannot be put into another."""
    first: Candidate | None = some[0]
    for other in some[1:]:
        first = first and joined(operation, first, other)
    return first


def find_together(
    operation: Operation, tried: Sequence[Candidate], seen: Sequence[Observation]
) -> list[Candidate]:
    """
    Find the smallest sets of mistakes that explain all that was seen, each as one candidate; none
    of one alone.
    """
    if operation.outside is not None:
        return []
    comparable = (o for o in seen if o.wrong and len(o.actual) == len(o.expected))
    wrong = sorted(comparable, key=complexity)
    small = [o for o in wrong if o.is_telling and o.size <= SMALL][:CASES]
    able = [c for c in tried if c.of is not None]
    sets = first_sets(operation, able, small)
    for _ in range(MOST):
        done = [s for s in sets if len(s.parts) > 1 and explains_all(s, seen)]
        if done:
            return done
        sets = [
            longer
            for one in sets[:STATES]
            if len(one.parts) < MOST and (left := [o for o in small if one.distance(o) > 1])
            for longer in extended(operation, one, able, left)
        ]
        sets = list({frozenset(one.parts): one for one in sets}.values())
        sets.sort(key=lambda one: -sum(one.distance(o) <= 1 for o in small))
    return []


def complexity(o: Observation) -> tuple[int, int]:
    """How much there is in a case that can be wrong, and how many numbers."""
    given = (o.recipe.mask, o.recipe.padding, o.recipe.dropout, o.recipe.poison)
    return sum(bool(each) for each in given), o.size


def first_sets(
    operation: Operation, able: Sequence[Candidate], small: Sequence[Observation]
) -> list[Candidate]:
    """What alone explains a case of many numbers; where nothing does, two at once."""
    many = [o for o in small if count_numbers(o) >= NUMBERS]
    alone = {
        c: sum(c.distance(other, roughly=True) <= 1 for other in small)
        for o in many
        for c in able
        if c.distance(o, roughly=True) <= min(1, law_of(c, [o]) / CLEARLY)
    }
    found = [replace(c, parts=(c.words,)) for c in sorted(alone, key=lambda c: -alone[c])]
    if found:
        return distinct(found, small)
    base = next((o for o in many if o.size <= PAIRED), None)
    if base is None:
        return []
    acting = distinct(effective(able, base), [base])
    pairs = (joined(operation, one, other) for one, other in combinations(acting, 2))
    return [pair for pair in pairs if pair and pair.distance(base, roughly=True) <= 1]


def distinct(found: Sequence[Candidate], seen: Sequence[Observation]) -> list[Candidate]:
    """One of those that say the same to all that was seen, the simplest, in their order."""
    kept: dict[tuple[bytes, ...], Candidate] = {}
    for c in sorted(found, key=lambda c: c.simplicity):
        kept.setdefault(tuple(fingerprint(c, o) for o in seen), c)
    chosen = set(kept.values())
    return [c for c in found if c in chosen]


def fingerprint(c: Candidate, o: Observation) -> bytes:
    with np.errstate(over="ignore"):
        return b"".join(np.asarray(x, np.float32).tobytes() for x in answer_of(c, o))


def answer_of(c: Candidate, o: Observation) -> list[Any]:
    try:
        with np.errstate(all="ignore"):
            return arrays(c.answer(o))
    except Exception:  # a fault may crash on such inputs
        return []


def effective(able: Sequence[Candidate], o: Observation) -> list[Candidate]:
    """Those that say another thing than the specification to a case."""
    law = replace(o, actual=o.expected)
    said = ((c, tuple(answer_of(c, o))) for c in able)
    return [c for c, x in said if x and (law.is_far(x) or law.distance(x) > 1)]


def extended(
    operation: Operation, one: Candidate, able: Sequence[Candidate], left: Sequence[Observation]
) -> Iterator[Candidate]:
    """The set and one mistake more that explains the first of the cases that are left."""
    base = next((o for o in left if count_numbers(o) >= NUMBERS), None)
    for other in effective(able, base) if base is not None else ():
        both = None if other.words in one.parts else joined(operation, one, other)
        if both and base and both.distance(base, roughly=True) <= 1:
            yield both


def joined(operation: Operation, one: Candidate, other: Candidate) -> Candidate | None:
    """Two candidates at once; None where one cannot be put into the other."""
    parts = (*(one.parts or (one.words,)), *(other.parts or (other.words,)))
    words = reduce(lambda told, then: say.BOTH.format(one=told, other=then), parts)
    if one.change is not None and other.change is not None:
        first, then = sorted((one, other), key=lambda c: c.rank)
        assert first.change is not None and then.change is not None
        return from_change(operation, words, combined(first.change, then.change), parts)
    outer, inner = (one, other) if one.mistake is not None else (other, one)
    if outer.mistake is None or inner.of is None:
        return None
    mistake, own = outer.mistake, function_of(inner)

    def both(op: Operation, inputs: Inputs) -> Any:
        return mistake(with_reference(op, own(op)), inputs)

    start = base_of(operation)
    return Candidate(
        words,
        words,
        lambda seen: both(start, seen.inputs),
        rank=2,
        rounds=one.rounds or other.rounds,
        of=lambda inputs, dtype: both(start, inputs),
        mistake=both,
        parts=parts,
    )


def function_of(inner: Candidate) -> Callable[[Operation], Callable[..., Any]]:
    """The function that a candidate is, of an operation that it may build on."""
    mistake, of = inner.mistake, inner.of
    assert of is not None
    if mistake is None:
        return lambda op: lambda **given: of(given, "float32")
    return lambda op: lambda **given: mistake(op, given)


def base_of(operation: Operation) -> Operation:
    """A layer with its stages as arguments; any other operation as it is."""
    stages = None if operation.is_gradient else getattr(layers, operation.name, None)
    return operation if stages is None else with_reference(operation, stages)


def explains_all(c: Candidate, seen: Sequence[Observation]) -> bool:
    """Whether it explains what is wrong, and predicts no failure in what is right."""
    ordered = sorted(seen, key=lambda o: o.size)
    return all(c.distance(o) <= (1 if o.wrong else TWO_ERRORS) for o in ordered)
