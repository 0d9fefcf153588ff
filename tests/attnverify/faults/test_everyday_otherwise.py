"""
Everyday faults by another hand, today's operations among them: what ``allclose(1e-3, 1e-3)`` sees
of a call as the ordinary test makes it, the quick profile sees, in every seed.

More seeds by hand: ``ATTNVERIFY_EVERYDAY_SEEDS=20``; all operations: ``-m "faults or thorough"``.
"""

import os

import numpy as np
import pytest

from attnverify.catalogue.dtypes import round_to
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import map_leaves
from attnverify.inputs.fixed_cases import fixed_cases, pair_count
from attnverify.inputs.real.calls import everyday_calls, far_calls
from attnverify.inputs.real.required_kinds import required_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import count_draws, draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.weak_cases import accepts
from attnverify.precision import resolve
from attnverify.verdicts.tally import Options
from tests.attnverify.faults.everyday import is_seen_by_allclose
from tests.attnverify.faults.everyday_otherwise import OTHERWISE, Otherwise, ordinary_call

pytestmark = pytest.mark.faults

SEEDS = range(int(os.environ.get("ATTNVERIFY_EVERYDAY_SEEDS", "1")))
EVERY_COMMIT = {
    "scaled_dot_product_attention",
    "alibi_attention",
    "grouped_attention",
    "latent_attention",
    "selected_attention",
    "packed_attention",
    "paged_attention",
    "merge_attention",
    "merge_attention_grad",
    "rotary_embedding",
    "dequantize",
    "multi_head_attention",
}
OPERATIONS = [
    pytest.param(name, marks=() if name in EVERY_COMMIT else pytest.mark.thorough)
    for name, op in CATALOGUE.items()
    if any(fault.of(op) for fault in OTHERWISE)
]


def quick_recipes(operation: str, seed: int) -> list[Recipe]:
    """What the quick profile shows for values, the smallest first."""
    draws = count_draws(operation, Options("quick", seed).cases)
    found = (
        *fixed_cases(operation),
        *required_cases(operation),
        *draw_recipes(operation, "any", draws, seed),
        *everyday_calls(operation, "quick", seed),
        *far_calls(CATALOGUE[operation], "quick"),
    )
    return sorted(dict.fromkeys(found), key=pair_count)


def is_rejected(fault: Otherwise, recipe: Recipe) -> bool:
    case = case_of(recipe, "float32")
    given = fault.answer(recipe, case.inputs, case.expected)
    stored = map_leaves(lambda x: round_to(x, "float32") if isinstance(x, np.ndarray) else x, given)
    precision = resolve(None, recipe.operation, recipe.operation, "float32")
    return not accepts(stored, case.expected, case.strict_bounds(precision))


def seen_by_the_ordinary_test(operation: str) -> list[Otherwise]:
    op, found = CATALOGUE[operation], []
    for fault in OTHERWISE:
        call = ordinary_call(op, fault.part) if fault.of(op) else None
        if call is not None and fault.is_on(call):
            case = case_of(call, "float32")
            if is_seen_by_allclose(fault.answer(call, case.inputs, case.expected), case.expected):
                found.append(fault)
    return found


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_an_ordinary_test_sees_the_quick_profile_sees(operation: str) -> None:
    faults = seen_by_the_ordinary_test(operation)
    for seed in SEEDS:
        left = [*faults]
        for recipe in quick_recipes(operation, seed):
            left = [f for f in left if not (f.is_on(recipe) and is_rejected(f, recipe))]
            if not left:
                break
        assert not [(seed, fault.name) for fault in left]
    assert faults or operation in NONE


NONE = {"rel_shift_grad", "shift_right_grad"}
"""Of whose faults the ordinary test sees none."""
