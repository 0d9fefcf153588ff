"""What bounds under several arithmetics share is computed once, and none of them changes it."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from attnverify import bounds
from attnverify.bounds.gradients import attention as gradients
from attnverify.bounds.softmax_rows import Rows, rows, total, weight_increase
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge import case as cases
from attnverify.judge.case import case_of
from attnverify.precision import REFERENCE, resolve
from attnverify.reference import blocks

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


@pytest.mark.parametrize("name", ["additive_score", "additive_attention"])
def test_queries_bounded_one_by_one_are_bounded_as_all_together(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = resolve("fused", name, name, "float32")
    for recipe in draw_recipes(name, "any", 5, 3):
        inputs = case_of(recipe, "float32").inputs
        monkeypatch.setattr("attnverify.bounds.scores.BLOCK", 1)
        found = bounds.error(name, inputs, claim)
        monkeypatch.setattr("attnverify.bounds.scores.BLOCK", 2**40)
        assert_allclose(found, bounds.error(name, inputs, claim), rtol=1e-12)


@pytest.mark.parametrize("kind", ["fused", "eager"])
def test_heads_bounded_one_by_one_are_bounded_as_all_together(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of a float mask sums over the heads that share it: they stay together there."""
    name, seen = "scaled_dot_product_attention_grad", set[int]()
    claim = resolve(kind, name, name, "float16")
    for recipe in draw_recipes(name, "any", 300, 11):
        inputs = case_of(recipe, "float16").inputs
        mask, heads = inputs["mask"], inputs["query"].shape[1]
        if recipe.is_large or heads == 1 or mask is None or mask.dtype == bool:
            continue
        if (1, *mask.shape)[-3:][0] > 1:  # heads with masks of their own are cases of their own
            continue
        wanted = bounds.error(name, inputs, claim)
        with monkeypatch.context() as patch:
            patch.setattr(gradients, "LARGE", -1)
            found = bounds.error(name, inputs, claim)
        for one, other in zip(found, wanted, strict=True):
            assert_allclose(one, other, rtol=1e-11)
        seen |= {axis for axis, size in enumerate((1, 1, *mask.shape)[-4:]) if size > 1}
    assert seen == {0, 2, 3}


GRID = {"B": 2049, "H": 4, "N": 1, "M": 2, "D": 2, "E": 2}


@pytest.mark.parametrize("name", ["alibi_attention", "alibi_attention_grad"])
def test_many_tiny_entries_are_bounded_in_few_blocks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one entry after the other is, bit for bit, and in no block of more than is small."""
    case = cases.Case(fixed_recipe(CATALOGUE[name], GRID), "float32")
    claim = resolve("fused", name, name, "float32")
    given = list(blocks.cut_in_blocks(CATALOGUE[name], case.recipe, case.inputs, "B"))
    entries = [x["query"].shape[0] for x in given]
    assert sum(entries) == GRID["B"] and entries[0] * 4 * 2 * 2 == blocks.SMALL
    found = bits(cases.errors_in_blocks(case, "B", claim))
    monkeypatch.setattr(blocks, "SMALL", 1)
    assert found == bits(cases.errors_in_blocks(case, "B", claim))


@pytest.mark.parametrize("spread", [1.0, 10.0, 100.0, 1000.0])
def test_where_nothing_underflows_the_bound_is_the_same(spread: float) -> None:
    """What is left out where no weight is small adds 0, beside hidden keys too."""
    draw = np.random.default_rng(int(spread))
    name = "scaled_dot_product_attention_grad"
    query, key, value, d_output = draw.standard_normal((4, 1, 2, 8, 5))
    mask = draw.random((8, 8)) < 0.8
    claim = resolve("fused", name, name, "float16")
    inputs = {"d_output": d_output, "query": spread * query, "key": key, "value": value}
    found = bits(bounds.error(name, inputs | {"mask": mask}, claim))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rows, "least", 0.0)
        assert bits(bounds.error(name, inputs | {"mask": mask}, claim)) == found


@pytest.mark.parametrize("largest", [0.5, 1.0, 3.0, np.inf])
def test_a_weight_grows_by_the_same_where_all_errors_are_small(largest: float) -> None:
    """The short form beside the one that takes either, of a row with one that is large."""
    score = np.random.default_rng(0).standard_normal((6, 9))
    E = np.random.default_rng(1).random((6, 9))
    at, more = rows(score, None), np.pad(E, ((0, 1), (0, 0)), constant_values=largest)
    beside = rows(np.pad(score, ((0, 1), (0, 0))), None)
    assert bits(weight_increase(at, E)) == bits(weight_increase(beside, more)[:-1])
