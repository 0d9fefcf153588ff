"""
Judging a recorded failure again.
"""

from attnverify.backends.loader import Implementation
from attnverify.checks.registry import checks
from attnverify.diagnosis.diagnose import diagnose
from attnverify.failures.record import FailureRecord
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import judge
from attnverify.judge.errors import Disagreement
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
    recipe = Recipe(**failure.recipe)
    if failure.aspect == "side effects":
        judge_side_effects(implementation, recipe, failure.dtype)
        return 0.0
    try:
        return judge(implementation, recipe, failure.dtype).budget
    except Disagreement as error:
        others = (
            *fixed_cases(failure.operation)[:6],
            *draw_recipes(failure.operation, "any", 6, 0),
        )
        cause = diagnose(implementation, [recipe], failure.dtype, others)
        words = f"{error}\n  cause: {cause}" if cause else str(error)
        raise Disagreement(words, error.kind, error.budget, error.comparison, error.path) from error
