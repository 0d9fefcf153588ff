"""
The cases that are drawn for the sake of what kernels get wrong at real sizes: each tells trivial
answers from the specification, and is what it says.
"""

from dataclasses import replace

import numpy as np
import pytest
from numpy import ndarray

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.checks.large_sizes import GRIDS, large_size_checks
from attnverify.faults.registry import read_faults
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import FAR, fixed_cases
from attnverify.inputs.memory_layouts import SHARED, arrange
from attnverify.inputs.real.calls import far_calls
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.invoke import to_backend_arrays
from attnverify.judge.judging import judge
from attnverify.precision import resolve
from attnverify.reference.attention import weigh as right_weights
from tests.attnverify.faults.first_failure import implementation_of
from tests.sight.lengths import ATTENTIONS, wrong

FAULTS = read_faults()
MASKED = [
    name
    for name, operation in CATALOGUE.items()
    if operation.mask in ("mask", "visible")
    and (operation.is_attention or "score" in operation.arguments)
]
HARD = [
    (operation, family) for operation in MASKED for family in FAR if not operation.endswith("_grad")
]


def hard(operation: str, family: str) -> Recipe:
    return next(r for r in fixed_cases(operation) if r.values["family"] == family)


def discriminates(case: Case) -> bool:
    operation = case.recipe.operation
    return case.is_discriminating(resolve("wide", operation, operation, case.dtype))


@pytest.mark.parametrize(("operation", "family"), HARD)
def test_scores_that_lie_far_below_tell_trivial_answers_apart(operation: str, family: str) -> None:
    assert discriminates(case_of(hard(operation, family), "float64"))
    assert discriminates(case_of(hard(operation, "far_below"), "float32"))


@pytest.mark.parametrize("operation", MASKED)
def test_a_finite_number_in_place_of_hidden_scores_lets_hidden_keys_in(operation: str) -> None:
    case = case_of(hard(operation, "far_below"), "float32")
    mask = next(name for name in ("mask", "visible") if name in case.inputs)
    hidden = ~np.broadcast_to(case.inputs[mask], case.inputs[mask].shape)
    slot = "score" if "score" in case.inputs else "value"
    assert hidden.any() and np.abs(case.inputs[slot]).max() == np.float32(1e30)


SENTINELS = {
    "float64": (-1e4, -1e6, -1e9, -1e15),
    "float32": (-1e4, -1e6),
    "bfloat16": (-1e4, -1e6),
    "float16": (-1e4,),
}
"""As far as a bound is finite: no score of -1e30 is exact enough in any dtype."""


@pytest.mark.parametrize("operation", ATTENTIONS)
@pytest.mark.parametrize(
    ("dtype", "sentinel"), [(d, x) for d, each in SENTINELS.items() for x in each]
)
def test_each_number_in_place_of_minus_infinity_is_noticed(
    operation: str, dtype: str, sentinel: float
) -> None:
    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        everything = np.ones_like(score, bool)
        return right_weights(np.where(visible, score, sentinel), everything)

    for stage, seen in ((weigh, True), (right_weights, False)):
        implementation = wrong(operation, dtype, {"weigh": stage})
        cases = [case_of(hard(operation, family), dtype) for family in FAR]
        assert any(refuted(case, implementation) for case in cases) == seen


def refuted(case: Case, implementation: Implementation) -> bool:
    try:
        judge(implementation, case)
    except Disagreement:
        return True
    return False


LARGE = [
    (name, place)
    for name, operation in CATALOGUE.items()
    for place, _ in enumerate(far_calls(operation, "default"))
    if not operation.traits.square and not operation.is_gradient and operation.dtypes != ("bool",)
]


@pytest.mark.parametrize(("operation", "place"), LARGE)
def test_a_large_case_tells_trivial_answers_apart(operation: str, place: int) -> None:
    recipe = far_calls(CATALOGUE[operation], "default")[place]
    assert discriminates(Case(recipe, "float64"))


def test_every_length_is_drawn_that_the_default_profile_promises() -> None:
    recipes = [r for name in CATALOGUE for r in far_calls(CATALOGUE[name], "default")]
    assert max(r.sizes.get("M", 0) for r in recipes) == 8192
    assert all(min(r.sizes.get("N", 1), r.sizes.get("M", 1)) <= 2048 for r in recipes)
    assert {192, 256, 257} <= {
        size for name in CATALOGUE for r in fixed_cases(name) for size in r.sizes.values()
    }
    assert [grid["B"] * grid["H"] for grid in GRIDS] == [1056, 65568]


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("learned_relative_attention_first_1024_blocks", "large: every block of two grids"),
        ("scaled_dot_product_attention_grid_of_16_bits", "large: every block of two grids"),
    ],
)
def test_a_fault_of_size_is_seen_in_bfloat16_where_it_belongs(fault: str, check: str) -> None:
    implementation = implementation_of(FAULTS[fault])
    named = dict(large_size_checks(implementation.operation.name, "default"))
    with pytest.raises(Disagreement):
        named[check](implementation, "bfloat16")


@pytest.mark.parametrize(
    ("fault", "family", "M"),
    [
        ("scaled_dot_product_attention_last_key_beyond_2048", "columns", 2051),
        ("scaled_dot_product_attention_first_key_beyond_4096", "columns", 8192),
        ("scaled_dot_product_attention_bfloat16_sum_of_64", "one_signed", 8192),
    ],
)
def test_a_fault_of_length_is_seen_in_bfloat16_by_a_far_call(
    fault: str, family: str, M: int
) -> None:
    implementation = implementation_of(FAULTS[fault])
    calls = [
        recipe
        for recipe in far_calls(implementation.operation, "default")
        if (recipe.values["family"], recipe.sizes["M"]) == (family, M)
    ]
    assert any(refuted(case_of(recipe, "bfloat16"), implementation) for recipe in calls)


def test_a_fault_of_length_is_not_seen_below_it() -> None:
    implementation = implementation_of(FAULTS["scaled_dot_product_attention_grid_of_16_bits"])
    grid = next(iter(far_calls(implementation.operation, "quick")))
    small = replace(grid, sizes=grid.sizes | {"M": 64})
    assert judge(implementation, Case(small, "bfloat16")).budget < 1


def test_nan_stands_in_a_float_mask_under_the_padding_alone() -> None:
    (recipe,) = (r for r in fixed_cases("merge_masks") if r.poison)
    inputs = expand(recipe, "float32")
    padded = np.repeat(inputs["key_padding_mask"], inputs["num_heads"], axis=0)[:, None]
    assert padded.any()
    assert (
        np.isnan(inputs["attn_mask"]) == np.broadcast_to(padded, inputs["attn_mask"].shape)
    ).all()


def test_keys_lie_with_their_width_first() -> None:
    x = np.arange(24.0).reshape(1, 2, 3, 4)
    y = arrange(lambda a, dtype: a.astype(dtype), x, "float32", "width_first")
    assert np.array_equal(x, y) and y.strides[-2] < y.strides[-1]


def test_one_array_is_given_as_key_and_as_value() -> None:
    implementation = implementation_of(FAULTS["alibi_attention_grad_shared_key"])
    (recipe,) = (r for r in fixed_cases("alibi_attention_grad") if r.layout["kind"] == SHARED)
    given = to_backend_arrays(implementation, case_of(recipe, "float32"))
    assert given["key"] is given["value"]
