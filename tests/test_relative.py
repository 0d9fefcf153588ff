"""
Relative positions: every backend against the specification, and the specification against what its
clauses say.
"""

import math

import numpy as np
import pytest

from attnverify.differential import *
from attnverify.spec import (
    causal_mask,
    learned_relative_attention,
    learned_relative_score,
    sinusoidal_positions,
    softmax,
    transformer_xl_attention,
    transformer_xl_score,
)
from tests.support.random_arrays import close, normals

CHAPTER = "relative"

B, H, D, E, P = 2, 3, 11, 13, 17

each_size = pytest.mark.parametrize(("N", "M"), [(1, 1), (1, 7), (7, 1), (5, 5), (5, 7), (7, 5)])
each_align = pytest.mark.parametrize("align", ["end", "start"])


def xl_draw(N: int, M: int) -> list[np.ndarray]:
    return normals((B, H, N, D), (B, H, M, D), (H, M, D), (H, D), (H, D))


def learned_draw(N: int, M: int) -> list[np.ndarray]:
    return normals((B, H, N, D), (B, H, M, D), (2 * P, H, D), (2 * P, H), (H, D))


def distances(N: int, M: int) -> np.ndarray:
    """How far key j lies before query i, [N M]; negative behind it."""
    return M - N + np.arange(N)[:, None] - np.arange(M)


# sinusoidal positions


@pytest.mark.parametrize(("rows", "width"), [(1, 2), (5, 6), (13, 22)])
def test_a_position_is_the_sines_of_its_distance_and_then_the_cosines(rows, width):
    position = sinusoidal_positions(rows, width)
    for c, f in np.ndindex(rows, width // 2):
        angle = (rows - 1 - c) / 10000 ** (2 * f / width)
        assert abs(position[c, f] - math.sin(angle)) < 32 * 2.0**-53
        assert abs(position[c, width // 2 + f] - math.cos(angle)) < 32 * 2.0**-53


def test_the_last_row_is_the_distance_zero_and_more_rows_come_in_front():
    assert sinusoidal_positions(5, 6)[-1].tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(sinusoidal_positions(13, 6)[-5:], sinusoidal_positions(5, 6))


def test_the_product_of_two_positions_depends_on_their_distance_alone():
    position = sinusoidal_positions(13, 22)
    products = position @ position.T
    assert all(np.ptp(np.diagonal(products, offset)) < 1e-12 for offset in range(13))


# Transformer-XL


@each_size
def test_the_transformer_xl_score_is_content_and_distance_each_with_its_bias(N, M):
    query, key, position, u, v = xl_draw(N, M)
    score, distance = transformer_xl_score(query, key, position, u, v), distances(N, M)
    for b, h, i, j in np.ndindex(B, H, N, M):
        if distance[i, j] >= 0:
            r = position[h, M - 1 - distance[i, j]]
            wanted = (
                (query[b, h, i] + u[h]) @ key[b, h, j] + (query[b, h, i] + v[h]) @ r
            ) / math.sqrt(D)
            assert abs(score[b, h, i, j] - wanted) < 1e-12


@each_size
def test_transformer_xl_attention_is_the_causal_softmax_of_its_score(N, M):
    query, key, *rest = xl_draw(N, M)
    value, visible = normals((B, H, M, E))[0], np.random.default_rng(1).random((N, M)) < 0.7
    wanted = softmax(transformer_xl_score(query, key, *rest), visible & causal_mask(N, M)) @ value
    assert close(transformer_xl_attention(query, key, value, *rest, visible), wanted)


def test_an_older_key_more_in_front_changes_no_score():
    query, key, position, u, v = xl_draw(5, 7)
    longer = transformer_xl_score(query, key, position, u, v)[..., 2:]
    shorter = transformer_xl_score(query, key[:, :, 2:], position[:, 2:], u, v)
    assert close(longer[..., causal_mask(5, 5)], shorter[..., causal_mask(5, 5)])


def test_no_query_of_transformer_xl_sees_a_later_key():
    query, key, position, u, v = xl_draw(5, 7)
    value = normals((B, H, 7, E))[0]
    before = transformer_xl_attention(query, key, value, position, u, v)
    key[:, :, 5:], value[:, :, 5:] = np.nan, np.nan
    after = transformer_xl_attention(query, key, value, position, u, v)
    assert np.array_equal(after[:, :, :3], before[:, :, :3]) and np.isnan(after[:, :, 3:]).all()


def test_a_position_bias_alone_moves_the_same_weights_along_with_every_query():
    position = normals((H, 7, D))[0]
    zero, v = np.zeros((1, H, 7, D)), normals((H, D), seed=1)[0]
    score = transformer_xl_score(zero, zero, position, np.zeros((H, D)), v)[0]
    for i in range(1, 7):
        assert close(score[:, i, 1 : i + 1], score[:, i - 1, :i])


# learned positions


@each_size
@each_align
def test_the_learned_score_is_content_with_a_bias_and_the_row_of_the_offset(N, M, align):
    query, key, embeddings, bias, query_bias = learned_draw(N, M)
    score = learned_relative_score(query, key, embeddings, bias, query_bias, align)
    for b, h, i, j in np.ndindex(B, H, N, M):
        t = P + (j - i) - (M - N if align == "end" else 0)
        content = (query[b, h, i] + query_bias[h]) @ key[b, h, j]
        wanted = (content + query[b, h, i] @ embeddings[t, h] + bias[t, h]) / math.sqrt(D)
        assert abs(score[b, h, i, j] - wanted) < 1e-12


@each_size
def test_the_two_alignments_agree_where_queries_and_keys_are_as_many_and_nowhere_else(N, M):
    end, start = (learned_relative_score(*learned_draw(N, M), align) for align in ("end", "start"))
    assert np.array_equal(end, start) == (N == M)


def test_aligned_at_the_end_an_older_key_more_in_front_changes_no_score():
    query, key, *tables = learned_draw(5, 7)
    longer = learned_relative_score(query, key, *tables, "end")
    assert close(longer[..., 2:], learned_relative_score(query, key[:, :, 2:], *tables, "end"))


def test_aligned_at_the_start_a_later_key_more_behind_changes_no_score():
    query, key, *tables = learned_draw(5, 7)
    longer = learned_relative_score(query, key, *tables, "start")
    assert close(longer[..., :5], learned_relative_score(query, key[:, :, :5], *tables, "start"))


@each_size
@each_align
def test_rows_of_the_tables_that_no_pair_reads_are_absent(N, M, align):
    query, key, embeddings, bias, query_bias = learned_draw(N, M)
    offsets = -distances(N, M) if align == "end" else np.arange(M) - np.arange(N)[:, None]
    unread = np.setdiff1d(np.arange(2 * P), P + offsets)
    embeddings[unread], bias[unread] = np.nan, np.nan
    assert np.isfinite(
        learned_relative_score(query, key, embeddings, bias, query_bias, align)
    ).all()


@each_align
def test_learned_attention_sees_every_key_unless_told_otherwise(align):
    query, key, *tables = learned_draw(5, 7)
    value, visible = normals((B, H, 7, E))[0], np.random.default_rng(1).random((5, 7)) < 0.7
    score = learned_relative_score(query, key, *tables, align)
    assert close(
        learned_relative_attention(query, key, value, *tables, align), softmax(score) @ value
    )
    assert close(
        learned_relative_attention(query, key, value, *tables, align, visible),
        softmax(score, visible) @ value,
    )


@each_align
@pytest.mark.parametrize(("N", "M"), [(P, P), (P, 1), (1, P)])
def test_tables_that_just_reach_are_enough(N, M, align):
    assert np.isfinite(learned_relative_score(*learned_draw(N, M), align)).all()


@each_align
@pytest.mark.parametrize(("N", "M"), [(P + 1, P), (P, P + 1), (P + 1, 1), (1, P + 1)])
def test_a_sequence_beyond_the_tables_is_refused(N, M, align):
    with pytest.raises(
        ValueError, match=rf"^key_pos_embeddings: wanted .* P >= N={N} and P >= M={M}, got P={P}$"
    ):
        learned_relative_score(*learned_draw(N, M), align)
