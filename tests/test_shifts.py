"""
Shifts: every backend against the specification, and the specification against its own definition.
"""

import numpy as np
import pytest

from attnverify.differential import *
from attnverify.spec import rel_shift, shift_right

CHAPTER = "shifts"

each_size = pytest.mark.parametrize(
    ("N", "M"), [(1, 1), (1, 5), (5, 1), (2, 2), (3, 3), (5, 7), (7, 5), (2, 11), (11, 2), (6, 12)]
)
each_shift = pytest.mark.parametrize("shift", [shift_right, rel_shift])


def numbered(N: int, M: int) -> np.ndarray:
    """Every element another number, none of them 0."""
    return 1.0 + np.arange(N * M).reshape(N, M)


@each_size
def test_shift_right_appends_a_zero_column_reshapes_and_drops_the_tail(N, M):
    x = numbered(N, M)
    padded = np.concatenate([x, np.zeros((N, 1))], axis=1)
    assert np.array_equal(shift_right(x), padded.reshape(M + 1, N)[:-1].reshape(N, M))


@each_size
def test_rel_shift_prepends_a_zero_column_reshapes_and_drops_the_head(N, M):
    x = numbered(N, M)
    padded = np.concatenate([np.zeros((N, 1)), x], axis=1)
    assert np.array_equal(rel_shift(x), padded.reshape(M + 1, N)[1:].reshape(N, M))


@each_size
def test_rel_shift_brings_the_distance_of_query_and_key_to_every_causal_pair(N, M):
    distance = np.broadcast_to(np.arange(M - 1.0, -1.0, -1.0), (N, M))
    y = rel_shift(distance)
    for i in range(N):
        for j in range(max(0, M - N + i + 1)):
            assert y[i, j] == M - N + i - j


@each_size
def test_rel_shift_is_shift_right_read_backwards(N, M):
    x = numbered(N, M)
    assert np.array_equal(rel_shift(x), shift_right(x[::-1, ::-1])[::-1, ::-1])


@each_size
def test_the_last_row_stays_where_it_is_under_rel_shift_and_the_first_under_shift_right(N, M):
    x = numbered(N, M)
    assert np.array_equal(rel_shift(x)[-1], x[-1])
    assert np.array_equal(shift_right(x)[0], x[0])


@each_shift
def test_leading_axes_are_shifted_each_on_their_own(shift):
    x = np.arange(1.0, 1.0 + 2 * 3 * 5 * 7).reshape(2, 3, 5, 7)
    y = shift(x)
    for lead in np.ndindex(2, 3):
        assert np.array_equal(y[lead], shift(x[lead]))


@each_shift
def test_numbers_move_bit_for_bit(shift):
    x = np.frombuffer(np.random.default_rng(0).bytes(8 * 5 * 7)).reshape(
        5, 7
    )  # NaN with payloads among them
    origin = shift(numbered(5, 7)).astype(int)
    wanted = np.concatenate([[0.0], x.ravel()])[origin]
    assert np.array_equal(shift(x).view(np.uint64), wanted.view(np.uint64))


@each_shift
def test_strides_do_not_matter(shift):
    x = numbered(5, 7)
    assert np.array_equal(shift(np.asfortranarray(x)), shift(x))
    assert np.array_equal(shift(np.repeat(x, 2, axis=1)[:, ::2]), shift(x))
