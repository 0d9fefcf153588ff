"""
The price of a finding: how many calls it may make of the kernel and of the oracle beyond those of
the run, counted and not timed, so that what is told does not hang on the speed of a machine.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from attnverify.backends.implementation import Implementation
from attnverify.judge.case import Case
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge

KERNEL, ORACLE = 60, 36
"""Calls for one finding: its shrinking, its cause and its region together."""
OF_A_CAUSE = 39, 11
"""Those of them for the cause, in a run as in a replay."""
FOR_PROBES = 6, 6
"""Those of a cause that are kept for inputs that isolate a stage."""


EMULATED = 3
"""A call of a kernel that an emulated GPU executes counts as so many: it takes seconds."""


def price_of(implementation: Implementation) -> int:
    """What a call of the kernel counts, by what executes it and not by a clock."""
    return 1 if implementation.backend.machine is None else EMULATED


@dataclass
class CallBudget:
    """
    What is left of the calls, and what was seen for those that were made.

    A case that the run has judged costs no call of the oracle, whose answer is kept.

    price     what a call of the kernel counts
    judged    the cases of the run
    outcomes  what further cases have shown: the kind of their failure, "passed", or ""
    whole     the budget that this one is a part of
    """

    kernel: int = KERNEL
    oracle: int = ORACLE
    price: int = 1
    judged: frozenset[Case] = frozenset()
    outcomes: dict[Case, str] = field(default_factory=dict)
    whole: "CallBudget | None" = None

    @classmethod
    def of_findings(cls, number: int, judged: Iterable[Case] = (), price: int = 1) -> "CallBudget":
        """
        Return the budget of so many findings in the cases of a run: of many findings no more than
        twice the calls of the run, that red costs no more than three times green.
        """
        own = frozenset(judged)
        kernel = min(number * KERNEL, max(KERNEL, 2 * len(own)))
        return cls(kernel, number * ORACLE, price, own)

    def part(self, kernel: int = KERNEL, oracle: int = ORACLE) -> "CallBudget":
        """No more than so many of its calls; what is not spent stays here."""
        return CallBudget(kernel, oracle, self.price, self.judged, self.outcomes, self)

    def less(self, kernel: int = 0, oracle: int = 0) -> "CallBudget":
        """Its calls but for so many, which are kept for later."""
        left_kernel, left_oracle = self.left
        kept = kernel * self.price
        return self.part(max(left_kernel - kept, 0), max(left_oracle - oracle, 0))

    @property
    def left(self) -> tuple[int, int]:
        """What calls of the kernel may still count, and calls of the oracle."""
        kernel, oracle = (self.kernel, self.oracle) if self.whole is None else self.whole.left
        return min(self.kernel, kernel), min(self.oracle, oracle)

    def affords(self, kernel: int = 1, oracle: int = 0) -> bool:
        """Take so many calls, if as many are left."""
        left_kernel, left_oracle = self.left
        counted = kernel * self.price
        if counted > left_kernel or oracle > left_oracle:
            return False
        self._take(counted, oracle)
        return True

    def affords_case(self, case: Case) -> bool:
        """Take the calls that one more look at a case costs, if they are left."""
        return self.affords(1, int(case not in self.judged and case not in self.outcomes))

    def outcome(self, implementation: Implementation, case: Case) -> str:
        """
        Return the kind of the failure, "passed", or "" where the case says nothing or no call is
        left.
        """
        if case not in self.outcomes and self.affords_case(case):
            self.outcomes[case] = outcome_kind(implementation, case)
        return self.outcomes.get(case, "")

    def _take(self, kernel: int, oracle: int) -> None:
        self.kernel -= kernel
        self.oracle -= oracle
        if self.whole is not None:
            self.whole._take(kernel, oracle)


def outcome_kind(implementation: Implementation, case: Case) -> str:
    """Return the kind of the failure, "passed", or "" where the case says nothing."""
    try:
        return "passed" if judge(implementation, case).judged else ""
    except Unsupported:
        return ""
    except Disagreement as error:
        return error.kind
