"""Clauses of the masks."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from tests.spec.clauses.registry import Function, answering, clause, given
from tests.support.random_arrays import normals

SIZES = ((1, 1), (1, 7), (7, 1), (5, 5), (5, 7), (7, 5), (2, 11))


def starts_aligned(N: int, M: int) -> ndarray:
    return np.tri(N, M, dtype=bool)


@clause(
    "causal_mask",
    1,
    false=[starts_aligned, answering("causal_mask", lambda seen, **_: np.roll(seen, 1, axis=0))],
)
def the_last_query_stands_at_the_last_key(mask: Function) -> None:
    for N, M in SIZES:
        seen = mask(N=N, M=M)
        for i, j in np.ndindex(N, M):
            assert seen[i, j] == (M - 1 - j >= N - 1 - i)  # as far from the end
        assert seen[:, : max(0, M - N)].all()  # memory in front


@clause(
    "causal_mask",
    2,
    false=[
        starts_aligned,
        answering("causal_mask", lambda seen, **_: seen | ~seen.any(1, keepdims=True)),
    ],
)
def queries_before_the_first_key_see_none(mask: Function) -> None:
    seen = mask(N=5, M=3)
    assert seen.sum(axis=1).tolist() == [0, 0, 1, 2, 3]


def bools(*shape: int, seed: int = 0) -> ndarray:
    return np.random.default_rng(seed).random(shape) < 0.4


def merging(attn_mask: Any = None, key_padding_mask: Any = None, num_heads: int = 3) -> Any:
    return {
        "attn_mask": attn_mask,
        "key_padding_mask": key_padding_mask,
        "num_heads": num_heads,
    }


@clause(
    "merge_masks",
    1,
    false=[
        given("merge_masks", lambda attn_mask, **_: {"attn_mask": ~attn_mask}),
        given("merge_masks", lambda key_padding_mask, **_: {"key_padding_mask": ~key_padding_mask}),
    ],
)
def true_hides_in_both_masks(merge: Function) -> None:
    attn_mask, padding = bools(2, 4), bools(2, 4, seed=1)
    merged = merge(**merging(attn_mask, padding))[:, 0]
    assert np.array_equal(merged == -np.inf, attn_mask[None] | padding[:, None])


def head_major(attn_mask: ndarray, num_heads: int, **_: Any) -> dict[str, ndarray]:
    swapped = attn_mask.reshape(num_heads, -1, *attn_mask.shape[1:]).swapaxes(0, 1)
    return {"attn_mask": swapped.reshape(attn_mask.shape)}


@clause("merge_masks", 2, false=given("merge_masks", head_major))
def entries_of_three_axes_are_batch_major(merge: Function) -> None:
    merged = merge(**merging(np.zeros((6, 2, 4)) + np.arange(6.0)[:, None, None]))
    assert merged.shape == (2, 3, 2, 4)
    assert all((merged[b, h] == b * 3 + h).all() for b, h in np.ndindex(2, 3))


@clause(
    "merge_masks",
    3,
    false=[
        answering("merge_masks", lambda mask, **_: np.maximum(mask, -1e9)),
        answering("merge_masks", lambda mask, **_: np.maximum(mask, np.finfo(float).min)),
    ],
)
def what_is_hidden_is_minus_infinity(merge: Function) -> None:
    for call in (
        merging(np.ones((2, 4), bool)),
        merging(None, np.ones((2, 4), bool)),
        merging(np.zeros((2, 4)), np.ones((2, 4), bool)),
    ):
        mask = merge(**call)
        assert (mask == -np.inf).all()
        assert not spec.softmax(np.zeros((2, 3, 2, 4)), mask).any()


def tiled(axis: int) -> Function:
    """Twin: an axis of size 1 that has size 3."""

    def change(mask: ndarray, **_: Any) -> ndarray:
        return np.repeat(mask, 3, axis=axis) if mask.shape[axis] == 1 else mask

    return answering("merge_masks", change)


@clause("merge_masks", 4, false=[tiled(0), tiled(1), tiled(2)])
def an_axis_that_nothing_fixes_has_size_one(merge: Function) -> None:
    square, each, padding = bools(2, 4), bools(6, 2, 4), bools(2, 4)
    assert merge(**merging()).shape == (1, 1, 1, 1)
    assert merge(**merging(square)).shape == (1, 1, 2, 4)
    assert merge(**merging(each)).shape == (2, 3, 2, 4)
    assert merge(**merging(None, padding)).shape == (2, 1, 1, 4)
    assert merge(**merging(square, padding)).shape == (2, 1, 2, 4)


def summed(attn_mask: ndarray, key_padding_mask: ndarray, **_: Any) -> ndarray:
    with np.errstate(invalid="ignore"):
        return attn_mask[None, None] + np.where(key_padding_mask, -np.inf, 0.0)[:, None, None]


def the_finite_one(attn_mask: ndarray, key_padding_mask: ndarray, **_: Any) -> ndarray:
    return np.where(key_padding_mask[:, None, None], -np.inf, np.maximum(attn_mask, -1e9))


@clause("merge_masks", 5, false=[summed, the_finite_one])
def where_either_mask_hides_the_other_does_not_matter(merge: Function) -> None:
    padding = np.array([[False, True, False, True]])
    attn_mask = normals((3, 4))[0]
    attn_mask[:, 1] = np.inf, np.nan, 1e300
    attn_mask[:, 2] = -np.inf
    merged = merge(**merging(attn_mask, padding))[0, 0]
    assert (merged[:, 1:] == -np.inf).all()
    assert np.array_equal(merged[:, 0], attn_mask[:, 0])
