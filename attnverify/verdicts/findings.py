"""
From failing recipes to findings: shrink, diagnose, record, picture.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from attnverify.backends.implementation import Implementation
from attnverify.checks.call_sequences import passes_when_reloaded
from attnverify.diagnosis.call_budget import OF_A_CAUSE, CallBudget
from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.diagnosis.diagnose import choose_of_other_kinds, diagnose
from attnverify.diagnosis.narrow_partials import find_narrow_partials
from attnverify.failures.evidence import (
    DrawnCase,
    Evidence,
    describe_inputs,
    most_informative,
    picture_of_error,
    visible_extent,
)
from attnverify.failures.finding import Finding
from attnverify.failures.named_features import showing
from attnverify.failures.record import FailureRecord
from attnverify.failures.store import save_or_say
from attnverify.inputs.fixed_cases import pair_count
from attnverify.inputs.given import GIVEN
from attnverify.judge.case import Case
from attnverify.judge.errors import DeviceLost, Disagreement, Unsupported
from attnverify.judge.invoke import describe_error
from attnverify.judge.judging import describe_input_shapes, judge
from attnverify.verdicts.one_case import note
from attnverify.verdicts.shrinking import find_smallest
from attnverify.verdicts.tally import Options, Tally

MAX_KINDS_REPORTED = 3
AGAIN = 3
"""So many failing cases are run again, should the smallest not fail a second time."""
OF_A_FINDING, OF_SHRINKING = (52, 12), (8, 7)
"""Calls of the kernel and of the oracle for all but the region, and for the smallest case."""

KEPT = "something kept from earlier calls"
DEPENDS_ON_EARLIER_CALLS = Cause(
    f"{KEPT}: a freshly loaded backend gives the right answer to this call",
    (Explanation(KEPT, KEPT),),
)
PASSED_AGAIN = "passed when it was run again: the result depends on the calls before it"


@dataclass(frozen=True)
class Failures:
    """
    Where failures were met: by whom, in what, among how many cases, which of them passed, and how
    many were drawn.
    """

    implementation: Implementation
    dtype: str
    aspect: str
    options: Options
    cases: int
    passing: tuple[Case, ...] = ()
    drawn: int = 0

    def reproduce(self, case: Case, what: str) -> Disagreement | None:
        """Find the failure of this kind, if the case still fails so."""
        try:
            judge(self.implementation, case)
        except Disagreement as error:
            return error if error.kind == what else None
        except Unsupported:
            pass
        return None

    def shrink(
        self,
        failing: Sequence[Case],
        what: str,
        budget: CallBudget,
        within: Sequence[Callable[[Case], bool]] = (),
    ) -> Case:
        """
        Find a small case that fails in the same way and is not known to, within some conditions;
        somebody's own as it is.
        """
        drawn = [case for case in failing if case.recipe.values.get("family") != GIVEN]
        if not drawn:
            return failing[0]

        def outcome(case: Case) -> str:
            known = any(line.covers(case) for line in self.options.regions)
            lacks = not all(holds(case) for holds in within)
            return "" if known or lacks else budget.outcome(self.implementation, case)

        return find_smallest(drawn, self.passing, what, outcome)


def describe_failures(
    failures: Failures, failing: dict[str, list[Case]], budget: CallBudget
) -> dict[str, Finding]:
    """Write a finding for each kind of failure, by its kind; of many kinds the first few."""
    return {
        what: describe_failure(
            failures, what, cases, choose_of_other_kinds(failing, what), budget.part(*OF_A_FINDING)
        )
        for what, cases in list(failing.items())[:MAX_KINDS_REPORTED]
    }


def describe_failure(
    failures: Failures,
    what: str,
    failing: list[Case],
    others: Sequence[Case],
    budget: CallBudget,
) -> Finding:
    """Describe the finding by the smallest case that fails in this way, recorded and diagnosed."""
    share = f"{len(failing)} of {failures.cases} cases"
    smallest = failures.shrink(failing, what, budget.part(*OF_SHRINKING))
    tried = [case for case in dict.fromkeys((smallest, *failing[:AGAIN])) if budget.affords()]
    for case in tried:
        error = failures.reproduce(case, what)
        if error is not None:
            break
    else:
        return Finding(what, share=share, message=f"{failing[0].recipe}\n{PASSED_AGAIN}")
    implementation = failures.implementation
    depends = budget.affords() and passes_when_reloaded(implementation, case)
    cause = (
        DEPENDS_ON_EARLIER_CALLS
        if depends
        else find_narrow_partials(implementation, case)
        or cause_of(failures, [*failing, case], others, budget)
    )
    must = showing(cause, case, failing)
    if fit := [each for each in failing if must and all(holds(each) for holds in must)]:
        told = failures.shrink(fit, what, budget.part(*OF_SHRINKING), must)
        again = failures.reproduce(told, what)
        case, error = (told, again) if again else (case, error)
    draws = {"cases": failures.drawn, "seed": failures.options.seed} if failures.drawn else None
    record = replace(FailureRecord.of(implementation, case, failures.aspect), draws=draws)
    return Finding(
        what,
        share=share,
        message=str(error),
        cause=cause,
        record=record,
        evidence=Evidence(
            picture_of_error(record.operation, error),
            unshrunk_evidence(failures, failing, case, what, budget),
            describe_inputs(case),
        ),
        at=error.at,
        notes=(*name_none(error), *save_or_say(record, failures.options.failures, implementation)),
    )


def name_none(error: Disagreement) -> tuple[str, ...]:
    """Say for which arguments a library had None in place of a gradient."""
    names = " and ".join(error.without)
    return (f"None was returned for the gradient by {names}, and counts as 0",) if names else ()


def unshrunk_evidence(
    failures: Failures, failing: Sequence[Case], smallest: Case, what: str, budget: CallBudget
) -> DrawnCase | None:
    """
    Keep a failing case as it was drawn, where its picture has more to show than that of the
    smallest.
    """
    case = most_informative(failing)
    if visible_extent(case.recipe) <= visible_extent(smallest.recipe) or not budget.affords():
        return None
    shown = picture_of_error(case.operation.name, failures.reproduce(case, what))
    return DrawnCase(str(case.recipe), shown) if shown else None


def cause_of(
    failures: Failures, failing: Sequence[Case], others: Sequence[Case], budget: CallBudget
) -> Cause | None:
    """
    Find the likely cause of the last of these cases, held against those that passed. The search for
    it is no part of the verdict, which stands if it breaks off.
    """
    own = failures.implementation
    whose = own.operation.forward.name, own.how, failures.dtype
    try:
        cause = diagnose(
            own,
            failing,
            others,
            passing=failures.passing,
            budget=budget.part(*OF_A_CAUSE),
            told=own.backend.told.get(whose, frozenset()),
        )
    except DeviceLost:
        raise
    except Exception as error:
        return Cause(BROKEN_OFF.format(error=describe_error(error)))
    return cause and cause.beside(failing[-1])


BROKEN_OFF = "not found: the search for it broke off, which is a mistake of attnverify ({error})"


def describe_recorded(
    kind: str,
    message: str,
    record: FailureRecord,
    implementation: Implementation,
    options: Options,
    error: Disagreement,
) -> Finding:
    """Write the finding of a failure that is neither shrunk nor diagnosed, and tell it at once."""
    note(record, kind, "")
    return Finding(
        kind,
        message=message,
        record=record,
        evidence=Evidence(
            picture_of_error(record.operation, error),
            inputs=describe_inputs(record.case) if record.recipe else (),
        ),
        notes=save_or_say(record, options.failures, implementation),
    )


def describe_detached(
    implementation: Implementation, cases: Sequence[Case], tally: Tally, options: Options
) -> Finding:
    """Write the finding of calls whose outputs have no gradient where others have one."""
    smallest = min(cases, key=lambda case: pair_count(case.recipe))
    record = FailureRecord.of(implementation, smallest, "gradients")
    words = f"{len(cases)} calls gave outputs without a gradient, {tally.cases} with one"
    return Finding(
        "no gradient",
        message=f"{words}; without one:{describe_input_shapes(smallest.inputs)}",
        record=record,
        evidence=Evidence(None, inputs=describe_inputs(smallest)),
        notes=save_or_say(record, options.failures, implementation),
    )
