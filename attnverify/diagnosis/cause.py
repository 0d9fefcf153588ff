"""
Causes: what a diagnosis makes of a failure, as data. The sentence is for people; whether two
failures have one cause is told by the names of the explanations.
"""

from dataclasses import dataclass, replace

from attnverify.inputs.recipe import in_letters
from attnverify.judge.case import Case


@dataclass(frozen=True)
class Explanation:
    """
    One mistake that explains a failure.

    name   which mistake it is, the same in every dtype and at every size
    words  the same with the numbers of this failure
    declares  the value of PRECISION under which the cases pass; "" where there is none
    """

    name: str
    words: str
    declares: str = ""

    @classmethod
    def of(cls, words: str) -> "Explanation":
        """
        Return a mistake named by its words: the same in a backward pass as in the forward, and at
        whatever number hidden scores stand.
        """
        forward = words.replace(IN_BACKWARD, "")
        return cls(AT_A_NUMBER if forward.startswith(HIDES_AT) else forward, words)


IN_BACKWARD = " in the backward pass"
AT_A_NUMBER = "hidden scores at "
HIDES_AT = AT_A_NUMBER, "keys that a boolean mask hides at "


@dataclass(frozen=True)
class Cause:
    """
    The likely cause of a failure: a sentence, and the mistakes that it names; none where it only
    says what is wrong and where. Of several mistakes each would explain it, or all ``together``.
    """

    words: str
    explanations: tuple[Explanation, ...] = ()
    together: bool = False

    def __str__(self) -> str:
        return self.words

    def seen_in(self, case: Case) -> "Cause":
        """Return the same with the sizes of the call in which it was seen."""
        return replace(self, words=self.words + describe_sizes(case))

    def beside(self, case: Case) -> "Cause":
        """Return the same as it is told of a case: what was seen in like sizes goes without."""
        return replace(self, words=self.words.removesuffix(describe_sizes(case)))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(explanation.name for explanation in self.explanations)


def describe_sizes(case: Case) -> str:
    """Write `` (seen with B=1 M=7 N=5)``."""
    return f" (seen with {in_letters(case.recipe.sizes)})"
