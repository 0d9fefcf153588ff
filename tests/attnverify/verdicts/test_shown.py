"""Which recipes a search shows, to libraries that compile each shape too."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray

from attnverify.backends.array_libraries import numpy_library
from attnverify.backends.implementation import Backend, Implementation
from attnverify.catalogue.operation import CATALOGUE, parse_name
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import features_of_call
from attnverify.judge.case import Case, case_of
from attnverify.judge.invoke import to_backend_arrays
from attnverify.precision import resolve
from attnverify.session import mark_second_opinions
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.columns import forget_other_shapes
from attnverify.verdicts.shown import (
    count_shapes,
    real_recipes,
    recipes_to_call_twice,
    shown_recipes,
    take_few,
)
from attnverify.verdicts.tally import Options
from tests.support.judge_text import judged

ALIBI, QUICK = "alibi_attention", Options("quick")


def implementation_of(name: str, **library: object) -> Implementation:
    """The specification's own function, in a library with these properties."""
    operation, how = parse_name(name)
    made = replace(numpy_library(), **library)  # type: ignore[arg-type]
    return Implementation(
        Backend("mine", "mine.py", library=made), operation, how, operation.specification
    )


@pytest.mark.usefixtures("real_calls_are_judged")
def test_what_an_interpreter_executes_is_shown_the_smallest_real_calls() -> None:
    compiled, interpreted = (implementation_of(ALIBI) for _ in range(2))
    interpreted.backend.interpreted = True
    whole, few = (
        max(shown_recipes(one, "values", QUICK, "any", 20).real, key=lambda r: r.sizes["N"])
        for one in (compiled, interpreted)
    )
    assert (whole.sizes["N"], whole.sizes["M"]) == (512, 512)
    assert (few.sizes["N"], few.sizes["M"], few.sizes["H"]) == (66, 130, 2)


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
    behind = set(shown.further({})) - set(shown.drawn)
    monkeypatch.setattr(Case, "is_judged", lambda case, _: case.recipe in behind)
    assert set(take_few(shown, own, "float32", QUICK).drawn) & behind


ATTENTIONS = ("scaled_dot_product_attention", "additive_attention_grad", "transformer_xl_attention")


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize(("kind", "cases"), [("any", 20), ("nan", 10)])
def test_kernels_that_are_judged_compiled_too_are_shown_each_feature_once(
    name: str, kind: str, cases: int
) -> None:
    alone, beside = (kernel_of(name, is_compiled_too=compiled) for compiled in (False, True))
    whole, few = (shown_recipes(one, "values", QUICK, kind, cases) for one in (alone, beside))
    all_shown, shown = (*whole.at_first, *whole.drawn), (*few.at_first, *few.drawn)
    assert len(shown) <= len(all_shown) * (0.6 if kind == "any" else 1)
    assert not few.further({})
    assert features_of_all(shown) == features_of_all(all_shown)


def test_all_is_shown_where_the_profile_is_thorough_and_to_ways_without_kernels() -> None:
    beside = kernel_of(ALIBI, is_compiled_too=True)
    thorough = Options("thorough")
    whole = shown_recipes(kernel_of(ALIBI), "values", thorough, "any", 20)
    assert shown_recipes(beside, "values", thorough, "any", 20)[:2] == whole[:2]
    assert shown_recipes(replace(beside, how="eager"), "values", QUICK, "any", 20)[:2] == whole[:2]


def test_what_calls_functions_that_are_judged_beside_it_is_shown_each_feature_once() -> None:
    module = replace(kernel_of(ALIBI), how="module", quick=True)
    interpreted_alone = replace(kernel_of(ALIBI), quick=True)
    few, whole = (
        len({*shown.at_first, *shown.drawn})
        for shown in (
            shown_recipes(one, "values", QUICK, "any", 20) for one in (module, interpreted_alone)
        )
    )
    assert few <= 0.6 * whole


@pytest.mark.parametrize("name", ATTENTIONS)
def test_columns_are_called_twice_with_each_feature_once(name: str) -> None:
    column, file = (implementation_of(name) for _ in range(2))
    column.backend.source = "numpy_ref"
    twice, all_twice = (recipes_to_call_twice(one, QUICK) for one in (column, file))
    assert len(twice) < len(all_twice)
    assert features_of_all(twice) == features_of_all(all_twice)


def test_numbers_of_another_seed_are_no_feature_of_a_call() -> None:
    recipe = fixed_recipe(CATALOGUE["selected_attention"], {})
    other = replace(recipe, options=recipe.options | {"selection": {"seed": 12345}})
    without = replace(recipe, options={"block": recipe.options["block"]})
    assert features_of_call(recipe) == features_of_call(other) != features_of_call(without)


def kernel_of(name: str, **backend: object) -> Implementation:
    made = implementation_of(name)
    vars(made.backend).update(backend)
    return replace(made, how="triton")


def features_of_all(recipes: Iterable[Recipe]) -> frozenset[object]:
    return frozenset().union(*map(features_of_call, recipes))


def test_only_columns_that_the_same_run_judges_compiled_are_second_opinions() -> None:
    sources = ("torch_impl", "torch_impl@sm_90a", "cupy_impl", "cupy_impl@sm_90a", "mine.py")
    found = [Backend(name, name, sampled="@" in name) for name in sources]
    found[3].missing = "no compiler"
    mark_second_opinions(found)
    assert [one.source for one in found if one.is_compiled_too] == ["torch_impl"]


def test_columns_meet_all_queries_and_keys_of_usual_calls_few_heads_and_some_dealt_calls() -> None:
    columns, files = (implementation_of("scaled_dot_product_attention") for _ in range(2))
    columns.backend.source = "torch_impl"
    own, whole = (
        [real_recipes(one, dtype, QUICK) for dtype in CATALOGUE[ALIBI].dtypes]
        for one in (columns, files)
    )
    own_sizes, sizes = ([r.sizes for dtype in each for r in dtype] for each in (own, whole))
    lengths = [[(x["N"], x["M"], x["D"], x["E"]) for x in each] for each in (own_sizes, sizes)]
    assert {*lengths[0]} <= {*lengths[1]}
    assert sorted(x["H"] for x in sizes if x["N"] == 512) == [2, 8, 8, 8]
    assert [x["H"] for x in own_sizes if x["N"] == 512] == [2, 2, 2, 2]
    dealt = [sum(x["N"] != 512 for x in each) for each in (own_sizes, sizes)]
    assert dealt[1] > dealt[0] >= dealt[1] // 3


WRONG_WHERE_LARGE = """
from attnverify.numpy_ref import rel_shift as right

def rel_shift(x):
    return right(x) * (2 if x.shape[-2] * x.shape[-1] > 16384 else 1)
"""


@pytest.mark.usefixtures("real_calls_are_judged", "causes_are_not_sought")
def test_what_is_wrong_in_real_calls_alone_is_failed(tmp_path: Path) -> None:
    assert judged(tmp_path, WRONG_WHERE_LARGE).verdict == "failed"


def test_small_calls_do_not_see_it(tmp_path: Path) -> None:
    assert judged(tmp_path, WRONG_WHERE_LARGE).verdict == "passed"
