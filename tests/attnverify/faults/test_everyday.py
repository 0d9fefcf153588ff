"""
No wrong kernel passes that an ordinary test would see: what ``allclose(1e-3, 1e-3)`` sees on
standard normal numbers of everyday size, the quick profile sees.

More seeds by hand: ``ATTNVERIFY_EVERYDAY_SEEDS=20 pytest -m faults .../test_everyday.py``.
"""

import os
from dataclasses import replace
from functools import lru_cache
from random import Random

import numpy as np
import pytest

from attnverify.catalogue.dtypes import round_to
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import map_leaves
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.real.calls import everyday_calls
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.weak_cases import accepts
from attnverify.precision import resolve
from tests.attnverify.faults.everyday import (
    Everyday,
    faults_of,
    is_seen_by_allclose,
    last_tile_of_rows,
    paths_of,
)

pytestmark = pytest.mark.faults

SEEDS = range(int(os.environ.get("ATTNVERIFY_EVERYDAY_SEEDS", "1")))
OPERATIONS = [
    name for name, op in CATALOGUE.items() if op.is_attention or op.is_score or op.traits.parameters
]


def is_noticed(fault: Everyday, recipe: Recipe, dtype: str = "float32") -> bool:
    """Whether the comparison of a case rejects what the fault answers, rounded to the dtype."""
    if not fault.is_on(recipe):
        return False
    case = case_of(recipe, dtype)
    given = fault.answer(recipe, case.inputs, case.expected)
    stored = map_leaves(lambda x: round_to(x, dtype) if isinstance(x, np.ndarray) else x, given)
    precision = resolve(None, fault.operation, fault.operation, dtype)
    return not accepts(stored, case.expected, case.strict_bounds(precision))


@lru_cache(maxsize=8)
def ordinary_call(operation: str, part: str) -> Recipe:
    """Standard normal numbers of everyday size, with the part that the fault needs."""
    calls = everyday_calls(operation, "quick", 0)
    with_part = [call for call in calls if not part or getattr(call, part) is not None]
    return replace(with_part[0], values={"family": "normal", "seed": 1000})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_an_ordinary_test_sees_the_quick_profile_sees(operation: str, seed: int) -> None:
    unseen, seen_by_it = [], 0
    for fault in faults_of(operation, Random(f"{operation} {seed}")):
        ordinary = case_of(ordinary_call(operation, fault.part), "float32")
        wrong = fault.answer(ordinary.recipe, ordinary.inputs, ordinary.expected)
        if is_seen_by_allclose(wrong, ordinary.expected):
            seen_by_it += 1
            if not any(
                is_noticed(fault, call) for call in everyday_calls(operation, "quick", seed)
            ):
                unseen.append((fault.name, fault.least))
    assert not unseen and seen_by_it >= 4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_wrong_on_one_path_alone_the_quick_profile_sees(operation: str, seed: int) -> None:
    calls = everyday_calls(operation, "quick", seed)
    last_rows = Everyday(operation, "", last_tile_of_rows, ())
    unseen = [
        path
        for path, takes in paths_of(operation)
        if not any(takes(call) and is_noticed(last_rows, call) for call in calls)
    ]
    assert not unseen


@pytest.mark.parametrize("operation", OPERATIONS)
def test_they_survive_every_smaller_case(operation: str) -> None:
    """They are on in no probe and no draw: it is the real calls that see them."""
    smaller = (*fixed_cases(operation), *draw_recipes(operation, "any", 20, 0))
    faults = faults_of(operation, Random(f"{operation} 0"))
    on = [fault for fault in faults if any(fault.is_on(recipe) for recipe in smaller)]
    assert not on


def test_right_answers_are_not_noticed() -> None:
    fault = Everyday("alibi_attention", "none", lambda op, given, right: right, ())
    assert not any(is_noticed(fault, call) for call in everyday_calls(fault.operation, "quick", 0))
