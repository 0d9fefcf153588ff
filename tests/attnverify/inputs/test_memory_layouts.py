"""Whether two arrays share memory: their elements decide, not the block that they lie in."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy import ndarray

from attnverify.inputs.expand import expand
from attnverify.inputs.memory_layouts import SHARED, share_key_and_value, shares_memory
from attnverify.inputs.recipe import Recipe
from tests.support.sample_backends import tallies


def numpy_block() -> ndarray:
    return np.zeros((4, 6))


def torch_block() -> torch.Tensor:
    return torch.zeros(4, 6)


@pytest.mark.parametrize("block", [numpy_block(), torch_block()], ids=["numpy", "torch"])
def test_views_share_memory_where_they_have_an_element_in_common(
    block: ndarray | torch.Tensor,
) -> None:
    assert shares_memory(block, block[1:2])
    assert shares_memory(block[:3], block[2:])
    assert shares_memory(block.T, block[..., 5])


@pytest.mark.parametrize("block", [numpy_block(), torch_block()], ids=["numpy", "torch"])
def test_views_that_lie_apart_or_between_each_other_share_none(
    block: ndarray | torch.Tensor,
) -> None:
    assert not shares_memory(block[:2], block[2:])
    assert not shares_memory(block[:, :3], block[:, 3:])
    assert not shares_memory(block[:, ::2], block[:, 1::2])
    assert not shares_memory(block[:0], block)


def test_two_libraries_can_share_memory() -> None:
    block = numpy_block()
    assert shares_memory(torch.from_numpy(block)[1:], block[1:])
    assert not shares_memory(torch.from_numpy(block)[1:], block[:1])


def test_narrow_floats_and_broadcast_axes_have_addresses_too() -> None:
    block = torch_block().bfloat16()
    assert shares_memory(block.expand(3, 4, 6), block[3])
    assert not shares_memory(block.expand(3, 4, 6)[:, 1:], block[0])


def test_what_has_no_memory_shares_none() -> None:
    nowhere = torch.zeros(3, device="meta")
    assert not shares_memory(nowhere, nowhere) and not shares_memory("a word", "a word")


def test_views_of_one_block_are_outputs_of_their_own() -> None:
    found = tallies("update_mems", "legal_habits")
    assert {name: tally.verdict for name, tally in found.items()} == dict.fromkeys(found, "passed")


def test_one_array_is_key_and_value_only_where_both_are_shaped_alike() -> None:
    sizes = {"B": 1, "H": 2, "N": 3, "M": 4, "D": 5, "E": 5}
    alike = Recipe(
        "alibi_attention", sizes, {"family": "normal", "seed": 1}, layout={"kind": SHARED}
    )
    for recipe, shared in ((alike, True), (replace(alike, sizes=sizes | {"E": 6}), False)):
        given = share_key_and_value(expand(recipe, "float32"), SHARED)
        assert given["value"].shape[-1] == recipe.sizes["E"]
        assert (given["value"] is given["key"]) == shared
