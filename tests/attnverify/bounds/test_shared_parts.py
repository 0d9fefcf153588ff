"""What bounds under several arithmetics share is computed once, and none of them changes it."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from attnverify import bounds
from attnverify.bounds.softmax_rows import total
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge import case as cases
from attnverify.judge.case import case_of
from attnverify.precision import REFERENCE, resolve

COMPUTED = sorted(bounds.BOUNDS)


def bits(found: Any) -> list[bytes]:
    return [np.ascontiguousarray(x).tobytes() for x in leaves(found) if x is not None]


@pytest.mark.parametrize("name", COMPUTED)
def test_an_error_is_the_same_alone_and_after_others(name: str) -> None:
    claims = [resolve(kind, name, name, "bfloat16") for kind in ("fused", "eager")]
    for recipe in draw_recipes(name, "any", 2, 5):
        inputs = case_of(recipe, "bfloat16").inputs
        shared = bounds.prepare(name, inputs)
        for claim in (*claims, REFERENCE, *claims):
            assert bits(shared(claim)) == bits(bounds.error(name, inputs, claim))


def test_every_attention_has_a_part_that_is_shared() -> None:
    for name in filter(lambda name: CATALOGUE[name].is_attention, COMPUTED):
        inputs = case_of(draw_recipes(name, "any", 1, 5)[0], "float32").inputs
        assert not isinstance(bounds.prepare(name, inputs), partial), name


def test_a_part_that_is_changed_is_seen() -> None:
    kept = np.ones(3)

    def spoil(_: Any) -> np.ndarray:
        kept[...] += 1
        return kept.copy()

    once = total(spoil, ())
    assert bits(once(REFERENCE)) != bits(once(REFERENCE))


def test_a_case_is_bounded_as_if_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether what is shared is kept, as of a small case, or not."""
    name = "alibi_attention_grad"
    recipe = draw_recipes(name, "any", 1, 7)[0]
    claim = resolve("fused", name, name, "float32")
    wanted = bits(bounds.bound(name, case_of(recipe, "float32").inputs, claim))
    for small in (2**30, 0):
        monkeypatch.setattr(cases, "SMALL", small)
        assert bits(cases.Case(recipe, "float32").bounds(claim)) == wanted
