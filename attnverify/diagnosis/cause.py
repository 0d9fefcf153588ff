"""
Causes: what a diagnosis makes of a failure, as data. The sentence is for people; whether two
failures have one cause is told by the names of the explanations.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """
    One mistake that explains a failure.

    name   which mistake it is, the same in every dtype and at every size
    words  the same with the numbers of this failure
    """

    name: str
    words: str


@dataclass(frozen=True)
class Cause:
    """
    The likely cause of a failure: a sentence, and the mistakes that it names; none where it only
    says what is wrong and where.
    """

    words: str
    explanations: tuple[Explanation, ...] = ()

    def __str__(self) -> str:
        return self.words

    @property
    def names(self) -> frozenset[str]:
        return frozenset(explanation.name for explanation in self.explanations)
