"""
Masks: every backend against the specification, and the specification against what its clauses say.
"""

import numpy as np
import pytest

from attnverify.differential import *
from attnverify.spec import causal_mask, merge_masks
from tests.support.random_arrays import normals

CHAPTER = "masks"

B, H, N, M = 2, 3, 5, 7

each_size = pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (1, 7), (7, 1), (5, 5), (5, 7), (7, 5), (2, 11)]
)


def bools(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape) < 0.4


def in_full(mask: np.ndarray) -> np.ndarray:
    return np.broadcast_to(mask, (B, H, N, M))


@each_size
def test_a_causal_row_sees_a_prefix_of_the_keys_as_long_as_its_place_among_them(rows, columns):
    for i, row in enumerate(causal_mask(rows, columns)):
        length = max(0, columns - rows + i + 1)
        assert row.tolist() == [True] * length + [False] * (columns - length)


@each_size
def test_the_last_query_sees_every_key_and_is_the_query_of_a_step_with_a_cache(rows, columns):
    assert causal_mask(rows, columns)[-1].all()
    assert np.array_equal(causal_mask(rows, columns)[-1:], causal_mask(1, columns))


def test_keys_in_front_of_the_segment_are_seen_by_every_query():
    assert causal_mask(N, M)[:, : M - N].all()
    assert np.array_equal(causal_mask(N, M)[:, M - N :], causal_mask(N, N))


SHAPES = {
    "neither": (None, None, (1, 1, 1, 1)),
    "bool [N M]": (bools(N, M), None, (1, 1, N, M)),
    "float [N M]": (normals((N, M))[0], None, (1, 1, N, M)),
    "bool [B*H N M]": (bools(B * H, N, M), None, (B, H, N, M)),
    "float [B*H N M]": (normals((B * H, N, M))[0], None, (B, H, N, M)),
    "padding": (None, bools(B, M), (B, 1, 1, M)),
    "bool [N M], padding": (bools(N, M), bools(B, M), (B, 1, N, M)),
    "float [N M], padding": (normals((N, M))[0], bools(B, M), (B, 1, N, M)),
    "bool [B*H N M], padding": (bools(B * H, N, M), bools(B, M), (B, H, N, M)),
    "float [B*H N M], padding": (normals((B * H, N, M))[0], bools(B, M), (B, H, N, M)),
}
each_pair = pytest.mark.parametrize(("attn_mask", "padding", "shape"), SHAPES.values(), ids=SHAPES)


@each_pair
def test_an_axis_that_nothing_fixes_has_size_one(attn_mask, padding, shape):
    assert merge_masks(attn_mask, padding, H).shape == shape


@each_pair
def test_a_pair_is_hidden_where_either_mask_hides_it_and_keeps_its_number_elsewhere(
    attn_mask, padding, shape
):
    merged = in_full(merge_masks(attn_mask, padding, H))
    for b, h, i, j in np.ndindex(B, H, N, M):
        entry = (
            0.0
            if attn_mask is None
            else attn_mask[i, j]
            if attn_mask.ndim == 2
            else attn_mask[b * H + h, i, j]
        )
        hidden = (padding is not None and padding[b, j]) or entry is np.True_
        assert merged[b, h, i, j] == (-np.inf if hidden else float(entry))


@each_pair
def test_the_merged_mask_is_no_view_of_what_it_was_made_from(attn_mask, padding, shape):
    merged = merge_masks(attn_mask, padding, H)
    assert not any(
        np.shares_memory(merged, mask) for mask in (attn_mask, padding) if mask is not None
    )
    merged += 1.0  # and nothing in it is one number shared by many places


@pytest.mark.parametrize("number", [np.inf, np.nan, -np.inf, 1e300])
def test_no_number_brings_a_padded_key_back(number):
    padding = np.zeros((B, M), bool)
    padding[0, 3] = True
    merged = in_full(merge_masks(np.full((N, M), number), padding, H))
    assert (merged[0, :, :, 3] == -np.inf).all()
    assert not (merged[1, :, :, 3] == -np.inf).any() or number == -np.inf


def test_the_number_of_heads_must_divide_a_three_axis_mask():
    with pytest.raises(
        ValueError,
        match=r"^attn_mask: wanted shape \[N M\] or \[B\*H N M\] with H=3, got \(7, 5, 7\)$",
    ):
        merge_masks(np.zeros((7, N, M)), None, H)


def test_two_masks_of_another_batch_are_refused():
    with pytest.raises(
        ValueError, match=r"^key_padding_mask: wanted shape \[B M\] with B=2 M=7, got \(3, 7\)$"
    ):
        merge_masks(np.zeros((B * H, N, M)), np.zeros((3, M), bool), H)
