"""
NaN that a row gets by what is hidden from it is told by its reason: a gradient of a hidden weight
that overflows, a float mask that leaves nothing, a layer whose softmax sees nothing.
"""

from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.diagnose import diagnose, passed_observations
from attnverify.diagnosis.layers.mistakes import EMPTY_ROWS, with_empty_rows
from attnverify.faults.arithmetic.softmax import empty_rows
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import Case, case_of
from attnverify.reference import attention, gradients
from tests.attnverify.diagnosis.test_diagnose import cause, computed

SDPA = "scaled_dot_product_attention"
OVERFLOWS = "0 times infinity, which is NaN, where a hidden weight's gradient overflows"


def in_float16(**inputs: Any) -> Any:
    """A gradient of an attention in plain float16: hidden pairs are left out at its end."""

    def narrow(d: ndarray, keep: Any, p: float) -> ndarray:
        return attention.drop(d, keep, p).astype(np.float16).astype(float)

    def mean(weights: ndarray, d_weights: ndarray) -> ndarray:
        return (weights * d_weights).sum(axis=-1, keepdims=True)

    with np.errstate(all="ignore"):
        return getattr(gradients, f"{SDPA}_grad")(**inputs, drop_back=narrow, row_mean=mean)


def test_a_gradient_of_a_hidden_weight_that_overflows_is_named() -> None:
    own = computed(f"{SDPA}_grad", lambda inputs, dtype: in_float16(**inputs))
    assert OVERFLOWS in str(cause(own, "float16"))


@pytest.mark.parametrize("words", EMPTY_ROWS)
@pytest.mark.parametrize("operation", ["multi_head_attention", "alibi_multi_head_attention"])
def test_what_a_layer_makes_of_a_row_that_sees_no_key_is_named(operation: str, words: str) -> None:
    def layer(inputs: dict[str, Any], dtype: str) -> Any:
        return with_empty_rows(EMPTY_ROWS[words], CATALOGUE[operation], inputs)

    assert words in str(cause(computed(operation, layer)))


def with_nan_under_a_float_mask(inputs: dict[str, Any], dtype: str) -> Any:
    """NaN in the rows from which a float mask hides every key; a boolean one is looked up."""
    mask = inputs["mask"]

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        empty = np.nan if mask is not None and mask.dtype != bool else 0.0
        return np.where(visible.any(axis=-1, keepdims=True), attention.weigh(score, visible), empty)

    return attention.scaled_dot_product_attention(**inputs, weigh=weigh)


def test_rows_that_a_float_mask_alone_makes_nan_are_told_by_it() -> None:
    own = computed(SDPA, with_nan_under_a_float_mask)
    assert "NaN in rows that a float mask empties" in str(cause(own))


def row_that_sees_nothing() -> Case:
    """A case of one query from which the mask hides every key."""
    sizes = {"B": 1, "H": 1, "N": 1, "M": 3, "D": 2, "E": 2}
    mask = {"pattern": "empty_rows", "axes": "N M", "form": "bool"}
    recipes = (
        Recipe(SDPA, sizes, {"family": "normal", "seed": 1}, mask=mask | {"seed": seed})
        for seed in range(20)
    )
    cases = (case_of(recipe, "float32") for recipe in recipes)
    return next(case for case in cases if not case.inputs["mask"].any())


def test_what_gives_nothing_but_nan_is_asked_with_more_rows() -> None:
    def layer(inputs: dict[str, Any], dtype: str) -> Any:
        return attention.scaled_dot_product_attention(**inputs, weigh=empty_rows(lambda M: np.nan))

    told = diagnose(computed(SDPA, layer), [row_that_sees_nothing()])
    assert "NaN in rows that see no key" in str(told)


def test_nan_beside_nan_is_no_agreement() -> None:
    def nothing(inputs: dict[str, Any], dtype: str) -> Any:
        return np.nan * attention.scaled_dot_product_attention(**inputs)

    told = diagnose(computed(SDPA, nothing), [row_that_sees_nothing()])
    assert told is not None and "equals" not in str(told)


def test_a_pass_under_an_infinite_bound_says_nothing_of_the_answer() -> None:
    own = computed(SDPA, lambda inputs, dtype: attention.scaled_dot_product_attention(**inputs))
    values = {"family": "needles", "seed": 32289}
    mask = {"pattern": "sparse", "axes": "N M", "form": "lowest", "seed": 1}
    sizes = {"B": 1, "H": 1, "N": 8, "M": 8, "D": 7, "E": 4}
    lowest, plain = (Recipe(SDPA, sizes, values, mask=given) for given in (mask, None))
    cases = [case_of(recipe, "float32") for recipe in (lowest, plain)]
    assert [o.case for o in passed_observations(own, cases)] == cases[1:]
