"""
Memory: every backend against the specification, and the specification against what its clauses say.
"""

import itertools

import numpy as np
import pytest

from attnverify.differential import *
from attnverify.spec import init_mems, update_mems

CHAPTER = "memory"

L, B, F = 3, 2, 5

each_relation = pytest.mark.parametrize(
    ("S", "N", "mem_len"), list(itertools.product((0, 1, 2, 5), (1, 2, 3, 7), (0, 1, 2, 4, 6, 13)))
)


def stream(length: int, first: int = 0) -> list[np.ndarray]:
    """For each layer an array [B length F] whose numbers say layer, batch, position and column."""
    place = np.arange(first, first + length)[None, :, None] * 100.0
    return [
        1e6 * (layer + 1) + 1e4 * np.arange(B)[:, None, None] + place + np.arange(F)
        for layer in range(L)
    ]


@each_relation
def test_the_new_memory_is_the_last_positions_of_the_old_one_and_the_segment(S, N, mem_len):
    kept = min(mem_len, S + N)
    new = update_mems(stream(N, first=S), stream(S), mem_len)
    for memory, wanted in zip(new, stream(kept, first=S + N - kept), strict=True):
        assert memory.shape == (B, kept, F) and np.array_equal(memory, wanted)


@each_relation
def test_a_segment_cut_in_two_leaves_the_same_memory(S, N, mem_len):
    halfway = update_mems(stream(N, first=S), stream(S), mem_len)
    in_two = update_mems(stream(2, first=S + N), halfway, mem_len)
    at_once = update_mems(stream(N + 2, first=S), stream(S), mem_len)
    assert all(np.array_equal(*pair) for pair in zip(in_two, at_once, strict=True))


@each_relation
def test_the_result_shares_no_memory_with_its_inputs_and_leaves_them_as_they_were(S, N, mem_len):
    hids, mems = stream(N, first=S), stream(S)
    lists = list(hids), list(mems)
    new = update_mems(hids, mems, mem_len)
    assert not any(np.shares_memory(x, y) for x in new for y in hids + mems)
    assert all(
        x is y
        for before, after in zip(lists, (hids, mems), strict=True)
        for x, y in zip(before, after, strict=True)
    )
    assert all(
        np.array_equal(x, y)
        for x, y in zip(hids + mems, stream(N, first=S) + stream(S), strict=True)
    )


def test_the_first_memory_is_zeros_in_arrays_of_their_own():
    mems = init_mems(L, 7, B, F)
    assert [x.shape for x in mems] == [(B, 7, F)] * L and not any(x.any() for x in mems)
    mems[0] += 1.0
    assert not mems[1].any() and not mems[2].any()


def test_the_first_memory_is_full_at_once_and_pushes_out_a_zero_for_every_position():
    new = update_mems(stream(2), init_mems(L, 7, B, F), mem_len=7)
    assert all(
        not x[:, :5].any() and np.array_equal(x[:, 5:], y)
        for x, y in zip(new, stream(2), strict=True)
    )


def test_what_is_no_number_is_remembered_bit_for_bit():
    odd = np.array([np.nan, -0.0, np.inf, 5e-324, -np.inf]).reshape(1, 1, 5)
    assert update_mems([odd], [odd[:, :0]], mem_len=3)[0].tobytes() == odd.tobytes()


@pytest.mark.parametrize(
    "mems",
    [stream(2)[:-1], [x[:1] for x in stream(2)], [x[..., 1:] for x in stream(2)], stream(2)[0]],
)
def test_a_memory_of_other_layers_batch_or_width_is_refused(mems):
    with pytest.raises(ValueError, match=r"^mems(\.0)?: wanted "):
        update_mems(stream(3), mems, mem_len=5)
