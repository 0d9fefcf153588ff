"""
ALiBi: every backend against the specification, and the specification against what its clauses say.
"""

import math

import numpy as np
import pytest

from attnverify.differential import *
from attnverify.spec import (
    alibi_attention,
    causal_mask,
    get_alibi_biases,
    get_slopes,
    scaled_dot_product_attention,
    softmax,
)
from tests.support.random_arrays import close, normals

CHAPTER = "alibi"

B, H, D, E = 2, 3, 11, 13

each_size = pytest.mark.parametrize(("N", "M"), [(1, 1), (1, 7), (7, 1), (5, 5), (5, 7), (7, 5)])
each_count = pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 31, 64, 97])


def draw(N: int, M: int) -> list[np.ndarray]:
    return normals((B, H, N, D), (B, H, M, D), (B, H, M, E))


def some(N: int, M: int) -> np.ndarray:
    return np.random.default_rng(1).random((N, M)) < 0.6


# slopes


def authors_slopes(n: int) -> list[float]:
    """As printed by the authors (Press et al., attention_with_linear_biases)."""
    if math.log2(n).is_integer():
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]
    closest = 2 ** math.floor(math.log2(n))
    return authors_slopes(closest) + authors_slopes(2 * closest)[0::2][: n - closest]


@each_count
def test_the_slopes_are_those_of_the_authors(heads):
    assert close(get_slopes(heads) / authors_slopes(heads), np.ones(heads))


@each_count
def test_every_head_has_a_slope_of_its_own_between_zero_and_one(heads):
    slopes = get_slopes(heads)
    assert len(set(slopes.tolist())) == heads
    assert (slopes > 0).all() and (slopes < 1).all() and slopes.min() == 2**-8


@pytest.mark.parametrize("heads", [2, 4, 8, 16, 64])
def test_the_slopes_of_a_power_of_two_are_a_geometric_sequence_that_begins_with_its_ratio(heads):
    slopes = get_slopes(heads)
    assert close(slopes[1:] / slopes[:-1], np.full(heads - 1, slopes[0]))


@pytest.mark.parametrize("heads", [3, 5, 7, 12, 13, 31, 97])
def test_other_counts_take_the_power_below_and_then_every_other_slope_of_the_power_above(heads):
    below = 2 ** int(math.log2(heads))
    assert np.array_equal(get_slopes(heads)[:below], get_slopes(below))
    assert np.array_equal(get_slopes(heads)[below:], get_slopes(2 * below)[::2][: heads - below])


# biases


@each_size
def test_a_bias_is_the_slope_times_the_number_of_keys_seen_so_far(N, M):
    visible, slopes = some(N, M), get_slopes(H)
    biases = get_alibi_biases(H, visible)
    for h, i, j in np.ndindex(H, N, M):
        assert biases[h, i, j] == slopes[h] * sum(visible[i, : j + 1].tolist())


@each_size
def test_under_a_causal_mask_a_bias_is_the_slope_times_the_distance_up_to_a_constant_per_row(N, M):
    visible = causal_mask(N, M)
    offset = np.arange(M) - (M - N + np.arange(N)[:, None])
    constant = get_alibi_biases(H, visible) - get_slopes(H)[:, None, None] * offset
    assert all(
        np.ptp(constant[h, i, visible[i]]) < 1e-12
        for h in range(H)
        for i in range(N)
        if visible[i].any()
    )


# attention


@each_size
def test_alibi_attention_is_the_softmax_of_score_and_slope_times_distance(N, M):
    query, key, value = draw(N, M)
    output, visible = alibi_attention(query, key, value, some(N, M)), some(N, M) & causal_mask(N, M)
    offset = np.arange(M) - (M - N + np.arange(N)[:, None])
    for b, h in np.ndindex(B, H):
        score = query[b, h] @ key[b, h].T / math.sqrt(D) + get_slopes(H)[h] * offset
        assert close(output[b, h], softmax(score, visible) @ value[b, h])


@each_size
def test_with_the_causal_mask_alone_it_is_attention_with_the_counted_biases(N, M):
    causal = causal_mask(N, M)
    mask = np.where(causal, get_alibi_biases(H, causal), -np.inf)
    assert close(alibi_attention(*draw(N, M)), scaled_dot_product_attention(*draw(N, M), mask))


def test_a_hidden_key_in_between_moves_none_here_but_brings_the_counted_biases_nearer():
    visible = causal_mask(7, 7) & (np.arange(7) != 3)
    counted = np.where(visible, get_alibi_biases(H, visible), -np.inf)
    positions = np.where(visible, get_slopes(H)[:, None, None] * np.arange(7), -np.inf)
    output = alibi_attention(*draw(7, 7), visible)
    assert close(output, scaled_dot_product_attention(*draw(7, 7), positions))
    assert not close(output, scaled_dot_product_attention(*draw(7, 7), counted), within=1e-3)


def test_a_step_with_a_cache_gives_the_last_row():
    query, key, value = draw(5, 7)
    assert close(
        alibi_attention(query[:, :, -1:], key, value), alibi_attention(query, key, value)[:, :, -1:]
    )


def test_an_older_key_that_is_hidden_is_as_good_as_none():
    query, key, value = draw(5, 7)
    hidden = alibi_attention(query, key, value, np.arange(7) >= 2)
    assert close(hidden, alibi_attention(query, key[:, :, 2:], value[:, :, 2:]))


def test_between_equal_keys_the_weight_falls_with_the_distance_at_the_rate_of_the_head():
    weights = alibi_attention(
        np.zeros((1, H, 1, D)),
        np.zeros((1, H, 7, D)),
        np.broadcast_to(np.eye(7), (1, H, 7, 7)).copy(),
    )[0, :, 0]
    assert close(np.diff(np.log(weights), axis=-1), np.broadcast_to(get_slopes(H)[:, None], (H, 6)))


def test_keys_behind_the_query_are_absent_even_where_they_are_no_numbers():
    query, key, value = draw(5, 7)
    before = alibi_attention(query, key, value)
    key[:, :, 4:], value[:, :, 4:] = np.nan, np.nan
    assert np.array_equal(alibi_attention(query, key, value)[:, :, :2], before[:, :, :2])
