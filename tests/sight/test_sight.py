"""An error is noticed from its size on, a lost key at every length, and a right kernel nowhere."""

from functools import partial
from itertools import product

import pytest

from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.real.calls import far_calls
from attnverify.reference.attention import weigh
from tests.sight.lengths import LOST, judge_recipe, refutes, weigh_without, wrong
from tests.sight.planted import factors_that_count, planted
from tests.sight.smallest import GRID, first_true, is_noticed, smallest_noticed


def test_the_first_of_a_monotone_property_is_found() -> None:
    for end, start, first in product((1, 2, 56), (0, 1, 28, 90), range(57)):
        asked: list[int] = []
        found = first_true(lambda k: (asked.append(k), k >= first)[1], end, start)  # noqa: B023
        assert found == min(first, end)
        assert all(0 <= k < end for k in asked) and len(asked) == len(set(asked)) <= 14


@pytest.mark.parametrize(
    ("operation", "goal"), [("scaled_dot_product_score", 0.001), ("additive_score_grad", 0.005)]
)
def test_an_error_is_noticed_from_its_size_on_and_none_is_not(operation: str, goal: float) -> None:
    factor = factors_that_count(CATALOGUE[operation])[0]
    size = smallest_noticed(operation, "eager", "bfloat16", factor, seeds=2)
    assert size in GRID and size <= goal
    for off, expected in ((0.0, False), (2 * size, True)):
        implementation = planted(operation, "eager", "bfloat16", factor, off)
        assert is_noticed(implementation, "bfloat16", factor, 3) == expected


def test_a_lost_key_is_noticed_at_every_length_and_none_is_not() -> None:
    name = "scaled_dot_product_attention"
    recipes = [r for r in far_calls(CATALOGUE[name], "default") if r.sizes["M"] in (129, 2051)]
    stages = {lost: partial(weigh_without, LOST[lost]) for lost in LOST} | {"none": weigh}
    for lost, stage in stages.items():
        implementation = wrong(name, "bfloat16", {"weigh": stage})
        seen = {
            M: any(
                refutes(partial(judge_recipe, recipe), implementation, "bfloat16")
                for recipe in recipes
                if recipe.sizes["M"] == M
            )
            for M in (129, 2051)
        }
        assert set(seen.values()) == {lost != "none"}, (lost, seen)
