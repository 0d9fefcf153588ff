"""Which recipes a search shows, to libraries that compile each shape too."""

from dataclasses import replace

import numpy as np
import pytest
from numpy import ndarray

from attnverify.backends.array_libraries import numpy_library
from attnverify.backends.loader import Backend, Implementation
from attnverify.catalogue.operation import CATALOGUE, parse_name
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import Case, case_of
from attnverify.judge.invoke import to_backend_arrays
from attnverify.precision import resolve
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.columns import forget_other_shapes
from attnverify.verdicts.shown import (
    count_shapes,
    recipes_to_call_twice,
    shown_recipes,
    take_few,
)
from attnverify.verdicts.tally import Options

ALIBI, QUICK = "alibi_attention", Options("quick")


def implementation_of(name: str, **library: object) -> Implementation:
    """The specification's own function, in a library with these properties."""
    operation, how = parse_name(name)
    made = replace(numpy_library(), **library)  # type: ignore[arg-type]
    return Implementation(
        Backend("mine", "mine.py", library=made), operation, how, operation.specification
    )


def shapes(recipes: tuple[Recipe, ...]) -> set[tuple[object, ...]]:
    """What a compiler sees of the recipes: shapes and dtypes."""
    inputs = [case_of(recipe, "float32").inputs for recipe in recipes]
    return {
        tuple((x.shape, str(x.dtype)) if isinstance(x, ndarray) else x for x in leaves(given))
        for given in inputs
    }


@pytest.mark.parametrize("name", [ALIBI, "scaled_dot_product_attention", "softmax"])
@pytest.mark.parametrize(("kind", "cases"), [("any", 20), ("nan", 10)])
def test_draws_of_a_library_that_compiles_share_few_shapes(
    name: str, kind: str, cases: int
) -> None:
    compiled, free = (
        shown_recipes(
            implementation_of(name, compiles_shapes=each), "values", QUICK, kind, cases
        ).drawn
        for each in (True, False)
    )
    assert len(shapes(compiled)) <= count_shapes(cases) < len(shapes(free))
    assert len(compiled) > cases / 2


@pytest.mark.parametrize("name", CATALOGUE)
def test_numbers_in_shapes_of_others_have_an_expected_answer(name: str) -> None:
    shown = shown_recipes(implementation_of(name, compiles_shapes=True), "values", QUICK, "any", 12)
    assert shown.drawn
    for recipe in shown.drawn:
        _ = case_of(recipe, "float64").expected  # raises ValueError where shapes do not fit


def test_what_is_called_twice_was_compiled_before() -> None:
    mine = implementation_of(ALIBI, compiles_shapes=True)
    shown = shown_recipes(mine, "values", QUICK, "any", QUICK.cases)
    twice = tuple(recipes_to_call_twice(mine, QUICK))
    assert twice
    assert shapes(twice) <= shapes(shown.at_first + shown.drawn)


def test_what_hides_keys_is_drawn_in_shapes_that_the_values_had() -> None:
    mine = implementation_of("scaled_dot_product_attention", compiles_shapes=True)
    values = shown_recipes(mine, "values", QUICK, "any", QUICK.cases).drawn
    hidden = shown_recipes(mine, "hidden NaN", QUICK, "nan", 10).drawn
    assert len(shapes(hidden) - shapes(values)) < len(shapes(hidden)) == count_shapes(10)
    assert {recipe.poison for recipe in hidden} == {"nan", "inf"}


def test_columns_of_one_dtype_share_what_was_compiled() -> None:
    forgotten: list[str] = []
    mine = implementation_of(ALIBI, forget=lambda: forgotten.append("all"))
    for dtype, aspect in (("float32", "values"), ("float32", "gradients"), ("float16", "values")):
        forget_other_shapes(Cell(mine, None, dtype, aspect))
        assert len(forgotten) == (dtype == "float16")


@pytest.mark.parametrize(("has_layouts", "dense"), [(True, False), (False, True)])
def test_arrays_without_layouts_come_as_the_library_makes_them(
    has_layouts: bool, dense: bool
) -> None:
    mine = implementation_of(ALIBI, has_layouts=has_layouts)
    shown = shown_recipes(mine, "values", QUICK, "any", 20).at_first
    recipe = next(one for one in shown if one.layout["kind"] == "transposed")
    given = to_backend_arrays(mine, case_of(recipe, "float32"))
    assert given["key"].flags["C_CONTIGUOUS"] == dense


def test_few_cases_are_such_as_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    own = implementation_of(ALIBI, compiles_shapes=False)
    shown = shown_recipes(own, "values", QUICK, "any", 20)
    first = take_few(shown, own, "float32", QUICK).drawn[0]
    monkeypatch.setattr(Case, "is_judged", lambda case, _: case.recipe != first)
    assert first not in take_few(shown, own, "float32", QUICK).drawn


def test_a_case_whose_bounds_are_infinite_is_not_judged() -> None:
    recipe, precision = fixed_recipe(CATALOGUE[ALIBI], {}), resolve("fused", "", "", "float32")
    case = Case(recipe, "float32")
    assert case.is_judged(precision)
    case._errors[precision] = np.full_like(case.expected, np.inf)
    assert not case.is_judged(precision)


def test_few_cases_go_on_behind_the_draws_where_none_of_these_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = implementation_of(ALIBI, compiles_shapes=False)
    shown = shown_recipes(own, "isolation", QUICK, "nan for some", 6)
    behind = set(shown.further) - set(shown.drawn)
    monkeypatch.setattr(Case, "is_judged", lambda case, _: case.recipe in behind)
    assert set(take_few(shown, own, "float32", QUICK).drawn) & behind
