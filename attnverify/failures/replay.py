"""
Judging a recorded failure again.
"""

from attnverify.backends.loader import Implementation
from attnverify.checks.registry import checks
from attnverify.diagnosis.diagnose import diagnose
from attnverify.failures.record import FailureRecord
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge
from attnverify.judge.side_effects import judge_side_effects


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
        others = (
            *fixed_cases(failure.operation)[:6],
            *draw_recipes(failure.operation, "any", 6, 0),
        )
        beside = [case_of(recipe, failure.dtype) for recipe in others]
        cause = diagnose(implementation, [failure.case], beside)
        words = f"{error}\n  cause: {cause}" if cause else str(error)
        raise Disagreement(words, error.kind, error.budget, error.comparison, error.path) from error
