"""
The suite's column of autocast: a module in a region is held to the specification in the region's
dtype, and what a region may not round is noticed.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from itertools import islice
from typing import Any

import pytest
import torch

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge
from attnverify.torch_impl import layers
from attnverify.torch_impl.modules import as_operations
from attnverify.torch_impl.modules.as_operations import PATHS

NAMES = [name for name in PATHS if name.endswith("_autocast")]
HALVES = ("float16", "bfloat16")


def of(name: str) -> Implementation:
    return next(i for i in load("torch_impl").implementations if i.name == name)


def stays_within_bounds(implementation: Implementation, dtype: str, cases: int = 6) -> bool:
    """Whether the first cases of the suite are as the specification says."""
    operation = implementation.operation.name
    recipes = *islice(fixed_cases(operation), cases), *draw_recipes(operation, "any", 2 * cases, 0)
    without_draw = [recipe for recipe in recipes if recipe.dropout is None]  # as in eval mode
    assert len(without_draw) > cases
    try:
        for recipe in without_draw:
            judge(implementation, case_of(recipe, dtype))
    except Disagreement:
        return False
    return True


def test_every_module_has_a_column() -> None:
    assert {name.removesuffix("_autocast") for name in NAMES} == {
        name.removesuffix("_module") for name in PATHS if name.endswith("_module")
    }


@pytest.mark.parametrize("dtype", HALVES)
def test_a_module_in_a_region_is_what_the_specification_says(dtype: str) -> None:
    assert stays_within_bounds(of("transformer_xl_layer_autocast"), dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("layer", [name.removesuffix("_autocast") for name in NAMES])
def test_the_function_of_a_layer_in_a_region_is_what_the_specification_says(
    layer: str, dtype: str
) -> None:
    """Attentions that are no layer are themselves on rounded inputs, bit for bit."""
    function = getattr(layers, layer, None)
    if function is None:
        return
    column = of(f"{layer}_autocast")

    @wraps(column.function)
    def in_region(*args: Any, **kwargs: Any) -> Any:
        return as_operations.in_region(function, args, kwargs)

    assert stays_within_bounds(replace(column, function=in_region), dtype, cases=2)


def in_bfloat16(region: Callable[..., Any]) -> Callable[..., Any]:
    """A region that is always one of bfloat16."""
    return lambda kind, *_, **options: region(kind, torch.bfloat16, **options)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_region_of_a_narrower_dtype_is_noticed(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three bits are lost in float16, and none in bfloat16."""
    monkeypatch.setattr(as_operations.torch, "autocast", in_bfloat16(torch.autocast))
    assert stays_within_bounds(of("multi_head_attention_autocast"), dtype) == (dtype == "bfloat16")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_there_is_no_region_of_a_wide_dtype(dtype: torch.dtype) -> None:
    x = torch.ones(1, 1, 2, 3, dtype=dtype)
    attend = PATHS["scaled_dot_product_attention_autocast"]
    with pytest.raises(NotImplementedError, match="half type"):
        attend(x, x, x)
    with pytest.raises(ValueError, match="key"):
        attend(x, x[..., :2], x)


def test_the_result_has_the_dtype_of_what_is_given() -> None:
    x = torch.ones(1, 1, 2, 3, dtype=torch.bfloat16)
    assert PATHS["scaled_dot_product_attention_autocast"](x, x, x).dtype == torch.bfloat16
