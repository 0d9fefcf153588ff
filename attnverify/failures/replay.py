"""
Judging a recorded failure again.
"""

from attnverify.backends.loader import Implementation
from attnverify.checks.registry import checks
from attnverify.diagnosis.cause import Cause
from attnverify.diagnosis.diagnose import diagnose
from attnverify.failures.record import FailureRecord
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge
from attnverify.judge.side_effects import judge_side_effects


def cause_again(failure: FailureRecord, implementation: Implementation, kind: str) -> Cause | None:
    """
    The cause as a run tells it: by the cases that every run begins with, which fail in this way or
    pass, beside the one that is recorded.
    """
    drawn = "nan" if failure.aspect == "hidden NaN" else "any"
    fixed = fixed_cases(failure.operation) if drawn == "any" else ()
    failing, passing = list[Case](), list[Case]()
    for recipe in (*fixed, *draw_recipes(failure.operation, drawn, FIRST_DRAWS, 0)):
        case = case_of(recipe, failure.dtype)
        try:
            if judge(implementation, case).judged:
                passing.append(case)
        except Disagreement as error:
            failing += [case] if error.kind == kind else []
        except Unsupported:
            continue
    return diagnose(implementation, [*failing, failure.case], passing=passing)


FIRST_DRAWS = 20
"""As many recipes as the shortest run draws."""


def replay(failure: FailureRecord, implementation: Implementation) -> float:
    """
    Judge what was recorded once more; the share of the bound. Raises Disagreement or Unsupported.
    """
    if failure.check:
        name, profile, seed = (failure.check[key] for key in ("name", "profile", "seed"))
        checks(failure.operation, failure.aspect, profile, seed)[name](
            implementation, failure.dtype
        )
        return 0.0
    if failure.aspect == "side effects":
        judge_side_effects(implementation, failure.case)
        return 0.0
    try:
        return judge(implementation, failure.case).budget
    except Disagreement as error:
        cause = cause_again(failure, implementation, error.kind)
        words = f"{error}\n  cause: {cause}" if cause else str(error)
        raise Disagreement(words, error.kind, error.budget, error.comparison, error.path) from error
