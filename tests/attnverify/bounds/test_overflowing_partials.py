"""
A gradient that is stored in a narrow format before its scale may overflow, though the result fits.

PyTorch's derivative of baddbmm is such a one: the product is stored, then multiplied by alpha. Both
recipes were drawn in a main job with a random seed, and accused torch_impl of infinity.
"""

import numpy as np
import pytest

from attnverify import bounds
from attnverify.backends.loader import load
from attnverify.inputs.expand import expand
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import case_of
from attnverify.judge.judging import judge
from attnverify.precision import resolve

OPERATION = "transformer_xl_score_grad"
DRAWN = [
    Recipe(
        OPERATION,
        {"B": 1, "D": 2, "H": 3, "M": 3, "N": 16},
        {"family": "brink", "seed": 65535},
        layout={"kind": "expanded", "seed": 345},
    ),
    Recipe(
        OPERATION,
        {"B": 3, "D": 2, "H": 1, "M": 17, "N": 17},
        {"family": "brink", "seed": 3337},
        layout={"kind": "contiguous", "seed": 20574},
    ),
]


@pytest.mark.parametrize("recipe", DRAWN, ids=["of one entry", "of the whole batch"])
def test_what_overflows_before_its_scale_is_right(recipe: Recipe) -> None:
    every = load("torch_impl").implementations
    judge(next(each for each in every if each.name == OPERATION), case_of(recipe, "float16"))


@pytest.mark.parametrize("recipe", DRAWN, ids=["of one entry", "of the whole batch"])
def test_without_the_declaration_nothing_may_overflow(recipe: Recipe) -> None:
    given = expand(recipe, "float16")
    stored, kept_wide = (
        bounds.bound(OPERATION, given, resolve({"preset": "wide"} | more, OPERATION, "", "float16"))
        for more in ({"grad_partial": "float16"}, {})
    )
    assert any(np.isinf(each).any() for each in stored)
    assert not any(np.isinf(each).any() for each in kept_wide)
