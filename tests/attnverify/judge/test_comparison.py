"""The one comparison: what it lets pass, and above all what it does not."""

import numpy as np
import pytest
from numpy import inf, nan

from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.comparison import (
    Comparison,
    compare,
    format_apart,
    format_budget,
    is_within,
)
from attnverify.judge.judging import describe_value, failure_kind
from attnverify.precision import REFERENCE, resolve


def held(actual: float, expected: float, bound: float | None, largest: float = inf) -> Comparison:
    return compare(
        np.array([actual]),
        np.array([expected]),
        None if bound is None else np.array([bound]),
        largest,
    )


def test_the_sign_of_zero_counts_where_numbers_move_and_not_where_gradients_are_added() -> None:
    for operation, passes in (("rel_shift", False), ("rel_shift_grad", True)):
        recipe = Recipe(operation, {"N": 1, "M": 2}, {"family": "special", "seed": 41})
        bound = case_of(recipe, "float32").bounds(REFERENCE)
        zero = None if bound is None else np.zeros(1)
        assert compare(np.array([0.0]), np.array([-0.0]), zero).passed == passes
        assert all(not part.any() for part in leaves(bound) if part is not None)


def test_an_error_at_the_bound_passes_and_one_above_it_does_not() -> None:
    expected, bound = 1.0, 2.0**-10
    assert held(expected + bound, expected, bound).passed
    assert not held(expected + bound * (1 + 1e-6), expected, bound).passed


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_one_ulp_above_the_bound_fails(dtype: type) -> None:
    expected, ulp = dtype(1.5), np.spacing(dtype(1.5))
    actual = float(expected + 3 * ulp)
    assert held(actual, float(expected), 3 * float(ulp)).passed
    assert not held(float(expected + 4 * ulp), float(expected), 3 * float(ulp)).passed


@pytest.mark.parametrize("actual", [nan, inf, -inf])
@pytest.mark.parametrize("bound", [0.0, 1.0, 1e300])
def test_what_is_not_finite_never_passes_for_a_finite_number(actual: float, bound: float) -> None:
    assert not held(actual, 1.0, bound).passed


@pytest.mark.parametrize(
    ("actual", "expected"),
    [(1.0, nan), (nan, inf), (inf, -inf), (inf, nan), (1e308, inf), (0.0, -inf)],
)
def test_the_classes_of_nan_and_infinity_must_agree(actual: float, expected: float) -> None:
    assert not held(actual, expected, 1.0).passed


@pytest.mark.parametrize("number", [nan, inf, -inf])
def test_the_same_class_passes(number: float) -> None:
    assert held(number, number, 1.0).passed
    assert held(number, number, None).passed


def test_a_nan_bound_passes_nothing() -> None:
    assert not held(1.0, 1.0, nan).passed


def test_an_infinite_bound_judges_nothing_and_says_so() -> None:
    found = held(123.0, 1.0, inf)
    assert found.passed and found.outside == found.total == 1 and found.budget == 0


def test_where_the_specification_is_nan_an_infinite_bound_excuses_nothing() -> None:
    assert not held(1.0, nan, inf).passed


def test_an_overflow_is_accepted_only_where_the_bound_reaches_the_largest_number() -> None:
    assert held(inf, 65000.0, 600.0, largest=65504.0).passed
    assert not held(inf, 65000.0, 400.0, largest=65504.0).passed
    assert not held(-inf, 65000.0, 600.0, largest=65504.0).passed
    assert not held(nan, 65000.0, 600.0, largest=65504.0).passed


def test_bit_for_bit_the_sign_of_zero_counts() -> None:
    assert not held(-0.0, 0.0, None).passed
    assert not held(0.0, -0.0, None).passed
    assert held(-0.0, -0.0, None).passed


def test_within_a_bound_the_sign_of_zero_does_not_count() -> None:
    assert held(-0.0, 0.0, 0.0).passed


def test_bit_for_bit_nothing_is_near() -> None:
    assert not held(np.nextafter(1.0, 2.0), 1.0, None).passed
    assert not held(nan, 1.0, None).passed


def test_a_bound_of_zero_asks_for_the_number_itself() -> None:
    assert held(1.0, 1.0, 0.0).passed
    assert not held(5e-324, 0.0, 0.0).passed


def test_one_wrong_element_among_many_is_found_and_named() -> None:
    expected = np.random.default_rng(0).standard_normal((7, 11))
    actual = expected.copy()
    actual[3, 5] += 1e-3
    found = compare(actual, expected, np.full(expected.shape, 1e-5))
    assert (found.wrong, found.index, found.budget) == (1, (3, 5), pytest.approx(100))
    assert "1 of 77 elements differ from the specification; worst at (3, 5)" in str(found)


def test_a_nan_is_worse_than_any_number() -> None:
    found = compare(np.array([1e30, nan, 0.0]), np.zeros(3), np.ones(3))
    assert found.index == (1,) and found.budget == inf and found.wrong == 2


def test_the_budget_is_the_worst_share_of_the_bound() -> None:
    found = compare(np.array([1.5, 2.1]), np.array([1.0, 2.0]), np.array([1.0, 1.0]))
    assert (
        found.passed
        and found.budget == pytest.approx(0.5)
        and found.rms == pytest.approx(np.sqrt(0.13))
    )


def test_booleans_compare_as_booleans() -> None:
    assert compare(np.array([True, False]), np.array([True, False]), None).passed
    assert compare(np.array([True, True]), np.array([True, False]), None).wrong == 1


def test_nothing_to_compare_is_no_error() -> None:
    assert compare(np.zeros((3, 0)), np.zeros((3, 0)), None).total == 0


def test_nothing_to_compare_has_no_place_and_no_numbers() -> None:
    found = compare(np.zeros((3, 0)), np.zeros((3, 0)), np.zeros((3, 0)))
    assert (found.index, found.actual, found.expected, found.bound) == ((), 0.0, 0.0, 0.0)


def test_every_element_has_a_bound_of_its_own() -> None:
    """Bounds that differ by row, by column and by batch entry: none stands for its neighbours."""
    bound = np.logspace(-9, -1, 24).reshape(2, 3, 4)
    for place in np.ndindex(bound.shape):
        actual = np.ones(bound.shape)
        actual[place] += 2 * bound[place]
        found = compare(actual, np.ones(bound.shape), bound)
        assert (found.wrong, found.index) == (1, place)


@pytest.mark.parametrize(
    ("actual", "expected", "bound"), [(inf, 65000.0, 600.0), (inf, inf, 1.0), (3.0, 1.0, inf)]
)
def test_what_is_right_by_its_class_uses_none_of_a_bound(
    actual: float, expected: float, bound: float
) -> None:
    """Beside an element that makes the comparison look at all of them."""
    found = compare(
        np.array([actual, nan]), np.array([expected, nan]), np.array([bound, 1.0]), largest=65504.0
    )
    assert found.passed and found.budget == found.rms == 0


@pytest.mark.parametrize("bound", [None, 0.0, 0.5, inf])
@pytest.mark.parametrize("second", [1.0, 1.25, 2.0, nan, inf])
def test_the_quick_answer_is_that_of_the_comparison(bound: float | None, second: float) -> None:
    actual, expected = np.array([1.0, second, 1.0]), np.ones(3)
    limit = None if bound is None else np.full(3, bound)
    assert is_within(actual, expected, limit) == compare(actual, expected, limit).passed


def test_of_a_bound_of_0_nothing_is_a_multiple():
    found = compare(np.array([0.5]), np.zeros(1), np.zeros(1))
    assert str(found).endswith("expected 0, exactly")
    assert "50x of it" in str(compare(np.array([0.5]), np.zeros(1), np.full(1, 0.01)))


@pytest.mark.parametrize(
    ("actual", "expected", "bound", "kind"),
    [
        (nan, 1.0, 1.0, "NaN"),
        (1.0, nan, 1.0, "NaN"),
        (1.0, 0.0, 0.0, "not exactly 0"),
        (inf, 1.0, 1.0, "infinity"),
        (-inf, inf, 1.0, "infinity"),
        (3.0, 1.0, 1.0, "wrong number"),
        (3.0, 0.0, 1.0, "wrong number"),
    ],
)
def test_what_went_wrong_is_named(actual: float, expected: float, bound: float, kind: str) -> None:
    assert failure_kind(held(actual, expected, bound)) == kind


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (None, "None"),
        (0.5, "float"),
        (np.zeros((2, 3)), "ndarray (2, 3)"),
        ((1, 2), "tuple of 2"),
        ({"w": 1, "b": 2}, "a mapping with w, b"),
        ({}, "a mapping with nothing"),
    ],
)
def test_what_came_in_place_of_an_array_is_called_by_its_kind(thing: object, words: str) -> None:
    assert describe_value(thing) == words


@pytest.mark.parametrize("operation", ["softmax", "transformer_xl_layer_grad"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_strict_bounds_are_narrower_by_next_to_nothing(operation: str, dtype: str) -> None:
    precision = resolve("eager", operation, operation, dtype)
    for recipe in draw_recipes(operation, "any", 5, 0):
        case = case_of(recipe, dtype)
        pairs = zip(
            leaves(case.strict_bounds(precision)), leaves(case.bounds(precision)), strict=True
        )
        for strict, whole in ((a, b) for a, b in pairs if a is not None):
            assert (strict <= whole).all()
            assert (strict[np.isfinite(whole)] >= (1 - 1e-8) * whole[np.isfinite(whole)]).all()


def test_the_worst_element_is_the_one_that_errs_most() -> None:
    actual, expected = np.array([1.0, 2.0, 9.0, 4.0]), np.array([1.0, 1.0, 1.0, 1.0])
    held = compare(actual, expected, np.full(4, 0.5))
    assert (held.wrong, held.index, held.budget) == (3, (2,), 16.0)


def test_a_wrong_element_is_worse_than_any_right_one() -> None:
    actual, bound = np.array([1.5, nan, 1.0]), np.array([1.0, 1.0, inf])
    held = compare(actual, np.ones(3), bound)
    assert (held.index, held.budget) == ((1,), inf)


@pytest.mark.parametrize(
    ("one", "other", "digits"),
    [(1.0, 1.0 + 2.0**-40, 13), (1.0, 2.0, 1), (0.1, np.nextafter(0.1, 1.0), 17)],
)
def test_numbers_that_differ_are_written_apart(one: float, other: float, digits: int) -> None:
    """``got 1 for 1`` told nothing."""
    first, second = format_apart(one, other)
    assert first != second and max(map(len, (first, second))) <= digits + 3
    got = str(compare(np.array([one]), np.array([other]), np.zeros(1)))
    assert f"got {first}, expected {second}," in got


def test_equal_numbers_and_nan_are_written_with_few_digits() -> None:
    assert format_apart(0.1, 0.1) == ("0.1", "0.1")
    assert format_apart(np.nan, 0.5) == ("nan", "0.5")


def test_a_share_near_1_is_told_on_its_own_side() -> None:
    told = [format_budget(share) for share in (0.314159, 0.999371, 1.0, 1.00082, 3.2e7, np.inf)]
    assert told == ["0.31x", "0.999371x", "1x", "1.00082x", "3.2e+07x", "infinite"]
