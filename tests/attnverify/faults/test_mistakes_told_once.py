"""A mistake stands once: no fault is a convention of its operation under other words."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnverify.catalogue.operation import CATALOGUE
from attnverify.conventions.convention import conventions
from attnverify.faults.registry import FAULTS, Fault, read_faults
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.observation import arrays

read_faults()

OTHER_STORIES = {
    "scaled_dot_product_attention_merge_unguarded": "NaN where a part has no key, not the row",
    "scaled_dot_product_attention_online_unguarded": "NaN where a block has no key, not the row",
    "scaled_dot_product_attention_minus_ten_thousand": "scores below -1e4 are seen as well",
    "additive_attention_minus_a_billion": "scores below -1e9 are seen as well",
    "softmax_clamped_mask": "scores below -1e4 are seen as well",
}
"""Faults that differ from a convention by inputs that are seldom drawn."""


Answer = Callable[..., Any]


def answer(function: Answer, inputs: dict[str, Any]) -> Any:
    try:
        with np.errstate(all="ignore"):
            return [*arrays(function(**inputs))]
    except Exception as error:  # a fault may refuse or crash on what it was not made for
        return type(error)


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, type) or isinstance(other, type):
        return one is other
    return len(one) == len(other) and all(
        np.shape(x) == np.shape(y) and bool(np.allclose(x, y, rtol=1e-9, equal_nan=True))
        for x, y in zip(one, other, strict=True)
    )


def synonyms(faults: list[Fault], operation: str) -> list[str]:
    """Pairs under unlike words that agree on every draw, where they differ from the operation."""
    op = CATALOGUE[operation]
    functions: dict[str, Answer] = {"": op.reference}
    functions |= {f.name: lambda f=f, **given: f.fresh()(**given) for f in faults}
    functions |= {
        c.words: lambda c=c, **given: c(op, given, "float64") for c in conventions(operation)
    }
    words = [c.words for c in conventions(operation)]
    left = [(f.name, other) for f in faults for other in words if other != f.words]
    right = {*words}
    for recipe in draw_recipes(operation, "any", 40, 5):
        inputs = case_of(recipe, "float64").inputs
        asked = {name for pair in left for name in pair} | {""}
        said = {name: answer(functions[name], inputs) for name in asked}
        left = [pair for pair in left if alike(*(said[name] for name in pair))]
        right -= {name for name in right & asked if not alike(said[name], said[""])}
    return [f"{name}: {other}" for name, other in left if other not in right]


@pytest.mark.parametrize("operation", sorted({f.operation.name for f in FAULTS.values()}))
def test_no_fault_is_a_convention_under_other_words(operation: str) -> None:
    faults = [
        fault
        for name, fault in FAULTS.items()
        if fault.operation.name == operation and name not in OTHER_STORIES
    ]
    assert synonyms(faults, operation) == []


def test_a_synonym_is_noticed() -> None:
    fault = FAULTS["get_slopes_plain_series"]
    said = synonyms([Fault(**vars(fault) | {"words": "a series of its own"})], "get_slopes")
    assert said == ["get_slopes_plain_series: slopes in a plain geometric series"]
