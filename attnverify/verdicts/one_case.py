"""
Judging one case of a cell: what is to be counted, in the light of what is known to fail.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

from attnverify.backends.declarations import STRICT
from attnverify.backends.implementation import Implementation
from attnverify.failures.known_failures import KnownFailure
from attnverify.failures.record import FailureRecord
from attnverify.judge.case import Case
from attnverify.judge.errors import Disagreement, NotCompiled, Unsupported
from attnverify.judge.judging import Verdict, judge
from attnverify.verdicts.tally import Options, Tally, unsupported

found_so_far: ContextVar[Callable[[dict[str, Any]], None]] = ContextVar(
    "found so far", default=lambda found: None
)
"""Who is told what was found in a cell that has no verdict yet, should the run be cut."""


def note(record: FailureRecord, kind: str, share: str) -> None:
    """Tell what was found so far, as plain data: what fails, how often, and what shows it again."""
    found_so_far.get()({"kind": kind, "share": share, "record": asdict(record)})


def judge_one(
    implementation: Implementation, case: Case, options: Options, known: float = 0.0
) -> tuple[Tally, str]:
    """
    Judge a case: what is to be counted, and the kind of its failure, "" if it passed, is not
    supported, or is known to fail. ``known``: the share of the bound that was used before.
    """
    regions = [line for line in options.regions if line.covers(case)]
    if fatal := fatal_case(regions, options):
        return fatal, ""
    try:
        return passed_case(judge(implementation, case, known), regions), ""
    except Unsupported as reason:
        return unsupported(str(reason)), ""
    except Disagreement as error:
        if uncompiled := reason_of(error, implementation):
            return unsupported(uncompiled), ""
        if regions:
            return Tally(known=1, regions=count_outcomes(regions, failed=1)), ""
        return Tally(cases=1, budget=error.budget), error.kind


def reason_of(error: Disagreement, implementation: Implementation) -> str:
    """
    Say why a call is not supported that ended in an error: a user's kernel is not compiled for it.
    "" for what is a failure, and of our own columns everything is.
    """
    is_ours = implementation.backend.declared is STRICT
    return error.reason if isinstance(error, NotCompiled) and not is_ours else ""


def fatal_case(regions: list[KnownFailure], options: Options) -> Tally | None:
    """
    Count a case that lies where the process ended before as failing there, without running it.
    """
    fatal = [line for line in regions if line in options.fatal]
    return Tally(known=1, regions=count_outcomes(fatal, failed=1)) if fatal else None


def passed_case(verdict: Verdict, regions: list[KnownFailure]) -> Tally:
    """Count a case that passed; one whose bounds are not finite says nothing."""
    if not verdict.judged:
        return Tally(outside=1)
    return Tally(
        cases=1,
        strong=int(verdict.discriminating),
        budget=verdict.budget,
        regions=count_outcomes(regions, passed=1),
    )


def count_outcomes(
    regions: list[KnownFailure], failed: int = 0, passed: int = 0
) -> dict[str, list[int]]:
    return {line.source: [failed, passed] for line in regions}
