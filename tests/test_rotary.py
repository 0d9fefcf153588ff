"""Rotary positions: every backend against the specification, and what holds of it without one."""

import numpy as np
import pytest
import torch

from attnverify import spec, torch_impl
from attnverify.differential import *

CHAPTER = "rotary"


def row(seed: int, N: int = 6, D: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 2, N, D))


def turn(x: np.ndarray, first: int, pairing: str = "halves", **more) -> np.ndarray:
    """Rows turned by positions that follow each other."""
    positions = first + np.arange(x.shape[2])[None]
    return spec.rotary_embedding(x, positions, pairing, **more)


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_scores_of_turned_rows_stay_when_all_rows_move(pairing):
    query, key = row(1), row(2)
    near, far = (
        turn(query, first, pairing) @ turn(key, first, pairing).mT for first in (0, 2**20 - 6)
    )
    assert np.abs(near - far).max() < 1e-9 * np.abs(near).max()


def test_a_cache_that_was_turned_before_is_turned_like_the_whole():
    x = row(3)
    parts = [turn(x[:, :, :4], 0), turn(x[:, :, 4:], 4)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=2), turn(x, 0))


def test_the_two_pairings_are_one_operation_of_channels_in_another_order():
    x, order = row(4), np.arange(8).reshape(2, 4).T.ravel()
    np.testing.assert_array_equal(turn(x, 9)[..., order], turn(x[..., order], 9, "interleaved"))


def test_proportional_rotary_is_a_frequency_of_0_in_pairs_of_the_whole_width():
    x, f = row(5), np.array([1.0, 0.1, 0.0, 0.0])
    y = turn(x, 5, frequencies=f)
    still = [2, 3, 6, 7]
    np.testing.assert_array_equal(y[..., still], x[..., still])
    assert (y[..., [0, 1, 4, 5]] != x[..., [0, 1, 4, 5]]).all()


def test_an_autocast_region_leaves_angles_alone():
    x, at = torch.tensor(row(6)).float(), torch.arange(6)[None] + 4000
    with torch.autocast("cpu", torch.bfloat16):
        found = torch_impl.rotary_embedding(x, at, "halves")
    assert torch.equal(found, torch_impl.rotary_embedding(x, at, "halves"))
