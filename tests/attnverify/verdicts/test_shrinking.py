"""
A failure is shown by a small case: the condition of the failing cases proposes it, and steps make
it smaller.
"""

from collections.abc import Callable

from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes, resized
from attnverify.judge.case import Case, case_of
from attnverify.verdicts.shrinking import bisect_sizes, find_smallest

CALLS = 7
"""So many outcomes are known of cases that the run has not seen."""

SDPA = "scaled_dot_product_attention"
RECIPES = (*fixed_cases(SDPA), *draw_recipes(SDPA, "any", 40, 0))


def smallest(fails: Callable[[Recipe], bool], calls: int = CALLS, known: bool = True) -> Recipe:
    """The case that a fault is shown by which fails so; without the cases that pass, if asked."""
    cases = [case_of(recipe, "float32") for recipe in RECIPES]
    kinds = {case: "wrong" if fails(case.recipe) else "passed" for case in cases}
    failing = [case for case in cases if kinds[case] == "wrong"]

    def outcome(case: Case) -> str:
        if case not in kinds and len(kinds) < len(set(cases)) + calls:
            kinds[case] = "wrong" if fails(case.recipe) else "passed"
        return kinds.get(case, "")

    passing = [case for case in cases if kinds[case] == "passed"] if known else []
    return find_smallest(failing, passing, "wrong", outcome).recipe


def test_a_length_is_shown_by_the_next_one() -> None:
    found = smallest(lambda recipe: recipe.sizes["M"] > 32)
    assert found.sizes == {"B": 1, "H": 1, "N": 1, "M": 33, "D": 1, "E": 1}
    assert found.mask is None and found.values["family"] == "normal"


def test_two_conditions_are_shown_together() -> None:
    found = smallest(lambda recipe: recipe.sizes["D"] > 1 and recipe.sizes["H"] & 1 == 0)
    assert (found.sizes["D"], found.sizes["H"], found.sizes["M"]) == (2, 2, 1)


def test_a_mask_is_kept_that_the_failure_needs() -> None:
    found = smallest(lambda recipe: recipe.mask is not None and recipe.sizes["M"] > 16)
    assert found.mask is not None and found.sizes["M"] == 17 and found.sizes["N"] == 1


def test_what_nothing_separates_is_made_smaller_step_by_step() -> None:
    assert set(smallest(lambda recipe: True, known=False).sizes.values()) == {1}


def test_without_a_call_it_is_one_of_the_failing_cases() -> None:
    assert smallest(lambda recipe: recipe.sizes["M"] > 32, calls=0) in RECIPES


def test_what_is_shown_fails_even_if_no_condition_is_right() -> None:
    def fails(recipe: Recipe) -> bool:
        return recipe.values["seed"] % 3 == 0 and recipe.layout["kind"] != "contiguous"

    assert fails(smallest(fails))


def test_a_large_call_is_made_as_small_as_still_fails() -> None:
    large = resized(RECIPES[0], {"B": 2, "H": 4, "N": 512, "M": 1000, "D": 64, "E": 64})
    found = bisect_sizes(large, lambda recipe: recipe.sizes["M"] > 130 and recipe.sizes["H"] > 2)
    assert found.sizes == {"B": 1, "H": 3, "N": 1, "M": 131, "D": 1, "E": 1}
