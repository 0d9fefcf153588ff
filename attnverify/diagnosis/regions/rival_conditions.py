"""
Rivals: other conditions that describe the failures nearly as well as the shortest, and the case
that would tell them apart.

A few failures have much in common by chance. Which of their common conditions is the one on which
the failure hangs is asked of the implementation, and the question is chosen: of the cases at hand
the one on which the rivals, weighted by how short they are, are most divided.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import nsmallest
from itertools import combinations

from attnverify.diagnosis.regions.condition_search import JOINT, candidates, description_length
from attnverify.inputs.conditions import parse_condition
from attnverify.judge.case import Case

MOST_TRIED, MOST_KEPT = 60, 24
"""So many conditions that let the fewest passes in are joined in pairs, and so many rivals kept."""
DIVIDED = 0.01
"""A case on which the predictions vary by less says nothing."""


@dataclass(frozen=True)
class Rival:
    """
    Conditions that hold of every failure.

    bits    the length of the description by them
    chance  how many of the cases in which they hold fail
    """

    conditions: tuple[str, ...]
    bits: float
    chance: float

    def predict(self, case: Case) -> float:
        """How likely the case fails, if these are the conditions on which that hangs."""
        return self.chance if all(holds(text, case) for text in self.conditions) else 0.0


@lru_cache(maxsize=2**15)
def holds(text: str, case: Case) -> bool:
    """Whether a condition holds of a case: each rival, and each turn, asks again."""
    return parse_condition(text)(case)


def find_rivals(failing: Sequence[Case], passing: Sequence[Case]) -> list[Rival]:
    """Find the shortest descriptions by two conditions at most, none among them."""
    priced = {text: bits for bits, text in sorted(candidates(failing, passing), reverse=True)}
    single: list[tuple[int, float, str]] = []
    for text, bits in priced.items():
        if all(holds(text, case) for case in failing):
            passes = sum(1 << i for i, case in enumerate(passing) if holds(text, case))
            single.append((passes, bits, text))
    tried = nsmallest(MOST_TRIED, single, key=lambda row: (row[0].bit_count(), row[1]))
    joined = ((a[0] & b[0], a[1] + b[1] + JOINT, (a[2], b[2])) for a, b in combinations(tried, 2))
    every: list[tuple[int, float, tuple[str, ...]]] = [((1 << len(passing)) - 1, 0.0, ())]
    every += [(passes, bits, (text,)) for passes, bits, text in tried]
    rivals = (made_of(*row, len(failing)) for row in (*every, *joined))
    return nsmallest(MOST_KEPT, rivals, key=lambda rival: rival.bits)


def made_of(passes: int, bits: float, conditions: tuple[str, ...], failing: int) -> Rival:
    inside = passes.bit_count()
    length = bits + description_length(inside, failing)
    return Rival(conditions, length, failing / (failing + inside))


def most_dividing(rivals: Sequence[Rival], cases: Iterable[Case]) -> Case | None:
    """Return the case on which the rivals are most divided, if they are."""
    shares = [2.0 ** (rivals[0].bits - rival.bits) for rival in rivals]

    def variance(case: Case) -> float:
        predicted = [rival.predict(case) for rival in rivals]
        mean = sum(map(lambda w, p: w * p, shares, predicted)) / sum(shares)
        return sum(w * (p - mean) ** 2 for w, p in zip(shares, predicted, strict=True)) / sum(
            shares
        )

    divided = [(variance(case), place, case) for place, case in enumerate(cases)]
    best = max(divided, key=lambda row: (row[0], -row[1]), default=None)
    return best[2] if best and best[0] > DIVIDED else None
