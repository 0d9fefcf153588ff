"""
Infinity that only some rows see, in calls so small that its score is often minus infinity: then its
weight is 0 and the output finite, and it may still reach the gradients of other rows.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import FROM_SOME, draw_recipes, resized
from attnverify.judge.case import case_of
from attnverify.judge.errors import Unsupported
from attnverify.judge.judging import judge
from attnverify.spec import grouped_attention

HIDING = sorted(name for name, operation in CATALOGUE.items() if operation.can_hide_from_some)
SMALL = {"B": 1, "H": 1, "N": 2, "M": 2, "D": 1, "E": 1}


def small_recipes(operation: str) -> Iterator[Recipe]:
    for recipe in draw_recipes(operation, FROM_SOME, 12, 3):
        sizes = {letter: size for letter, size in SMALL.items() if letter in recipe.sizes}
        yield replace(resized(recipe, sizes), poison="inf for some")


def implementations(operation: str) -> Iterator[Implementation]:
    for column in ("numpy_ref", "torch_impl", "cupy_impl"):
        for own in load(column).implementations:
            if own.operation.name == operation and not own.how.startswith("module_"):
                yield own


@pytest.mark.parametrize("operation", HIDING)
def test_a_row_of_infinity_reaches_no_other_row(operation: str) -> None:
    judged, ours = 0, [*implementations(operation)]
    for recipe in dict.fromkeys(small_recipes(operation)):
        case = case_of(recipe, "float32")
        for own in ours:
            try:
                judged += judge(own, case).judged
            except Unsupported:
                continue
    assert judged >= 20


@pytest.mark.parametrize("column", ["numpy_ref", "torch_impl", "cupy_impl"])
def test_a_row_whose_only_score_is_minus_infinity_is_as_one_that_sees_no_key(column: str) -> None:
    recipe = fixed_recipe(CATALOGUE["grouped_attention"], {"B": 1, "H": 1, "G": 1, "N": 1, "M": 1})
    inputs = case_of(recipe, "float32").inputs
    given = {name: np.ones_like(inputs[name]) for name in ("query", "key", "value")}
    given = given | {"query": -given["query"], "key": np.inf * given["key"]}
    given["value"] = np.nan * given["value"]
    output, lse = grouped_attention(**given)
    assert not output.any() and np.isneginf(lse).all()
    for own in load(column).implementations:
        if own.operation.name != "grouped_attention" or own.how.startswith("module_"):
            continue
        library = own.backend.library
        assert library is not None
        output, lse = own.function(
            **{name: library.from_numpy(x, "float32") for name, x in given.items()}
        )
        assert (library.to_numpy(output) == 0).all(), own.name
        assert np.isneginf(library.to_numpy(lse)).all(), own.name
