"""Attention over chosen blocks: every backend against the specification, and laws without one."""

import numpy as np
import pytest

from attnverify import numpy_ref, spec
from attnverify.differential import *

CHAPTER = "selected"


def drawn(seed: int, J: int = 3, blocks: int = 4) -> dict:
    """Two heads of eleven keys, in blocks of three, of which each row chooses J."""
    rng = np.random.default_rng(seed)
    shapes = {"query": (2, 4, 5, 6), "key": (2, 2, 11, 6), "value": (2, 2, 11, 3)}
    call = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return call | {"selection": rng.random((2, 2, 5, blocks)).argsort(-1)[..., :J]}


@pytest.mark.parametrize("column", [spec, numpy_ref])
def test_who_chooses_every_block_attends_to_all_keys(column):
    call = drawn(1, J=4)
    found = column.selected_attention(**call, block=3, causal=True)
    call.pop("selection")
    for one, other in zip(found, spec.grouped_attention(**call, causal=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11)


@pytest.mark.parametrize("column", [spec, numpy_ref])
def test_blocks_that_are_chosen_apart_and_merged_are_chosen_together(column):
    call = drawn(2)
    whole = column.selected_attention(**call, block=3, window=(6, None))
    choices = [call["selection"][..., at : at + 1] for at in range(3)]
    parts = [
        column.selected_attention(**call | {"selection": x}, block=3, window=(6, None))
        for x in choices
    ]
    found = spec.merge_attention(*(np.stack(x) for x in zip(*parts, strict=True)))
    for one, other in zip(found, whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11)


@pytest.mark.parametrize("column", [spec, numpy_ref])
def test_a_block_is_its_keys_chosen_one_by_one(column):
    call = drawn(3)
    keys = 3 * call["selection"][..., None] + np.arange(3)
    one_by_one = np.where(keys < 11, keys, -1).reshape(2, 2, 5, 9)
    pairs = (
        column.selected_attention(**call, block=3),
        column.selected_attention(**call | {"selection": one_by_one}, block=1),
    )
    for one, other in zip(*pairs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11)
