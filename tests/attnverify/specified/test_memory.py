"""Kernels that take what they are given for contiguous; letters of a specification are its own."""

from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from numpy import ndarray

from attnverify.inputs.conditions import parse_condition
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.sampling import resized
from attnverify.judge.case import case_of
from attnverify.specified import register
from tests.attnverify.specified.told import answered, cases, told


def ratio_of_rows(x: Float[ndarray, "R C"], y: Float[ndarray, "R C"]) -> Float[ndarray, "R C"]:
    """Divide tables element by element."""
    return x / (1.0 + np.abs(y))


def contiguous_from_pointer(x: torch.Tensor) -> torch.Tensor:
    """What a kernel reads that is given a pointer and sizes alone."""
    return x.as_strided(x.shape, (x.shape[1], 1))


def pointers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return contiguous_from_pointer(x) / (1 + contiguous_from_pointer(y).abs())


def pointer_of_one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x / (1 + contiguous_from_pointer(y).abs())


def written_in_order(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Each in its own order of memory where it is dense, as ``empty_like`` keeps it."""
    own = [a if a.mT.is_contiguous() else contiguous_from_pointer(a) for a in (x, y)]
    return own[0] / (1 + own[1].abs())


WORDS = {
    pointers: "x and y read as if it were contiguous, its strides forgotten",
    pointer_of_one: "y read as if it were contiguous, its strides forgotten",
    written_in_order: "x and y read as if it were contiguous, gaps in its memory forgotten",
}


@pytest.mark.parametrize("kernel", WORDS)
def test_forgotten_strides_are_told_of_ones_own_operation(kernel: Any) -> None:
    own = answered(ratio_of_rows, kernel)[0]
    assert WORDS[kernel] in told(own, cases("ratio_of_rows", drawn=20))


def test_sizes_are_changed_as_the_specification_takes_them() -> None:
    register(ratio_of_rows)
    (recipe, *_) = fixed_cases("ratio_of_rows")
    assert resized(recipe, {"R": 2}).sizes == recipe.sizes | {"R": 2}


def scaled_rows(A: Float[ndarray, "R C"], w_2: Float[ndarray, "C"]) -> Float[ndarray, "R C"]:
    """Scale columns."""
    return A * w_2


@pytest.mark.parametrize(
    "words", ["A is sliced from wider rows", "w_2 is reversed", "A is strided along its last axis"]
)
def test_a_condition_names_any_argument(words: str) -> None:
    """Names with digits and capitals were refused where a failure's condition was written."""
    register(scaled_rows)
    condition = parse_condition(words)
    found = {condition(case_of(recipe, "float32")) for recipe in fixed_cases("scaled_rows")}
    assert found == {False, True}
