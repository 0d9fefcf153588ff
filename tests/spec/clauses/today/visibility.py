"""Clauses of which keys a row sees."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from tests.spec.clauses.registry import Function, answering, clause, given, refuses

KEYS = "visible_keys"


def seen(function: Function, B: int, N: int, M: int, **options: Any) -> Any:
    """What the rows see, as lists of keys."""
    return [
        [np.flatnonzero(row).tolist() for row in entry]
        for entry in function(B=B, N=N, M=M, **options)
    ]


def numbers(*x: Any) -> ndarray:
    return np.array(x)


def without(*names: str) -> Function:
    """Twin: the operation that does not read these options."""
    right = getattr(spec, KEYS)
    return lambda **x: right(**{name: each for name, each in x.items() if name not in names})


def at_the_starts(B: int, offset: Any = None, **_: Any) -> dict[str, Any]:
    return {"offset": np.zeros(B, int) if offset is None else offset}


def never_negative(offset: Any = None, **_: Any) -> dict[str, Any]:
    return {"offset": None if offset is None else np.maximum(offset, 0)}


@clause(
    KEYS,
    1,
    false=[without("offset"), given(KEYS, at_the_starts), given(KEYS, never_negative)],
)
def the_last_row_stands_at_the_last_key_unless_an_offset_says_where(keys: Function) -> None:
    diagonal = {"window": (0, 0)}
    assert seen(keys, 1, 3, 5, **diagonal) == [[[2], [3], [4]]]
    assert seen(keys, 1, 3, 2, **diagonal) == [[[], [0], [1]]]
    short = {"lengths": numbers(4), "query_lengths": numbers(2)}
    assert seen(keys, 1, 3, 5, **diagonal, **short) == [[[2], [3], []]]
    for offset in (-1, 0, 1, 4):
        rows = [[p] if 0 <= p < 5 else [] for p in range(offset, offset + 3)]
        assert seen(keys, 1, 3, 5, **diagonal, offset=numbers(offset)) == [rows]
    assert seen(keys, 2, 1, 3, **diagonal, offset=numbers(0, 2)) == [[[0]], [[2]]]


def zero_means_all(lengths: Any = None, M: int = 0, **_: Any) -> dict[str, Any]:
    return {"lengths": None if lengths is None else np.where(lengths, lengths, M)}


@clause(KEYS, 2, false=[without("lengths"), given(KEYS, zero_means_all)])
def keys_from_the_length_onwards_are_absent(keys: Function) -> None:
    assert seen(keys, 3, 1, 4, lengths=numbers(0, 2, 4)) == [[[]], [[0, 1]], [[0, 1, 2, 3]]]


def rows_that_see(found: ndarray, query_lengths: Any = None, **x: Any) -> ndarray:
    """Twin: rows behind the last, which see what the last row does."""
    for b, n in enumerate(() if query_lengths is None else query_lengths):
        found[b, n:] = found[b, max(n - 1, 0)]
    return found


@clause(KEYS, 3, false=[without("query_lengths"), answering(KEYS, rows_that_see)])
def rows_from_the_query_length_onwards_see_nothing(keys: Function) -> None:
    call = {"causal": True, "query_lengths": numbers(0, 2, 3)}
    assert seen(keys, 3, 3, 3, **call) == [
        [[], [], []],
        [[0, 1], [0, 1, 2], []],
        [[0], [0, 1], [0, 1, 2]],
    ]


@clause(
    KEYS,
    4,
    false=[
        without("causal"),
        given(KEYS, lambda causal=False, window=None, **_: {"window": (None, -1 + 1)}),
    ],
)
def causality_hides_what_is_ahead(keys: Function) -> None:
    assert seen(keys, 1, 2, 3, causal=True) == [[[0, 1], [0, 1, 2]]]
    assert seen(keys, 1, 2, 3) == [[[0, 1, 2], [0, 1, 2]]]


def own_block(found: ndarray, blocks: Any = None, **x: Any) -> ndarray:
    """Twin: the block of the key that has the row's number."""
    if blocks is not None:
        for b, i in np.ndindex(found.shape[:2]):
            found[b, i] |= (blocks[b] == blocks[b, i]) & (blocks[b, i] != -1)
    return found


@clause(
    KEYS,
    5,
    false=[
        without("blocks"),
        answering(KEYS, own_block),
        given(KEYS, lambda blocks=None, **_: {"blocks": None if blocks is None else blocks + 1}),
    ],
)
def a_row_sees_the_block_that_its_own_key_is_in(keys: Function) -> None:
    blocks = numbers([-1, 0, 0, 0, -1, 1, 1, -1])
    assert seen(keys, 1, 8, 8, causal=True, blocks=blocks) == [
        [[0], [*range(4)], [*range(4)], [*range(4)], [*range(5)], [*range(7)], [*range(7)],
         [*range(8)]]
    ]  # fmt: skip
    assert seen(keys, 1, 2, 8, causal=True, blocks=blocks, offset=numbers(1)) == [
        [[0, 1, 2, 3], [0, 1, 2, 3]]
    ]
    outside = {"offset": numbers(3), "lengths": numbers(3), "causal": True}
    assert seen(keys, 1, 1, 4, blocks=numbers([0, 0, 0, 0]), **outside) == [[[0, 1, 2]]]
    assert seen(keys, 1, 1, 8, blocks=blocks) == [[[*range(8)]]]


def counted_itself(window: Any = None, **_: Any) -> dict[str, Any]:
    left, right = window or (None, None)
    return {"window": (None if left is None else max(left - 1, 0), right)}


def off_at_zero(window: Any = None, **_: Any) -> dict[str, Any]:
    return {"window": window and tuple(count or None for count in window)}


def window_or_blocks(found: ndarray, blocks: Any = None, **x: Any) -> ndarray:
    wide = spec.visible_keys(**{**x, "blocks": blocks, "window": None})
    return found if blocks is None else wide


@clause(
    KEYS,
    6,
    false=[
        without("window"),
        given(KEYS, counted_itself),
        given(KEYS, off_at_zero),
        answering(KEYS, window_or_blocks),
    ],
)
def a_window_counts_other_keys_on_each_side(keys: Function) -> None:
    middle = {"offset": numbers(3)}
    for window, row in (
        ((0, 0), [3]),
        ((2, 0), [1, 2, 3]),
        ((2, None), [1, 2, 3, 4, 5]),
        ((None, 1), [0, 1, 2, 3, 4]),
        ((1, 1), [2, 3, 4]),
        ((9, 9), [*range(6)]),
        ((None, None), [*range(6)]),
        ([1, 0], [2, 3]),
    ):
        assert seen(keys, 1, 1, 6, window=window, **middle) == [[row]]
    assert seen(keys, 1, 1, 6, window=(1, 1), causal=True, **middle) == [[[2, 3]]]
    block = numbers([0] * 6)
    assert seen(keys, 1, 1, 6, window=(1, 1), causal=True, blocks=block, **middle) == [[[2, 3, 4]]]


def pinned_everywhere(found: ndarray, pinned: int = 0, **_: Any) -> ndarray:
    found[:, :, :pinned] = True
    return found


@clause(KEYS, 7, false=[without("pinned"), answering(KEYS, pinned_everywhere)])
def pinned_keys_stay_on_the_left_of_every_window(keys: Function) -> None:
    assert seen(keys, 1, 1, 5, window=(1, 0), pinned=2) == [[[0, 1, 3, 4]]]
    rows = [[0], [0, 1], [0, 1, 2], [0, 1, 3]]
    assert seen(keys, 1, 4, 4, window=(0, None), pinned=2, causal=True) == [rows]
    assert seen(keys, 1, 1, 4, window=(0, 0), pinned=3, offset=numbers(0)) == [[[0]]]
    assert seen(keys, 1, 1, 4, window=(0, 0), pinned=3, lengths=numbers(0)) == [[[]]]
    assert seen(keys, 1, 1, 4, window=(0, 0), pinned=3, chunk=2) == [[[2, 3]]]


def towards_zero(found: ndarray, chunk: Any = None, offset: Any = None, **x: Any) -> ndarray:
    """Twin: runs counted by a division that rounds towards zero."""
    if chunk is None or offset is None:
        return found
    p = offset[:, None, None] + np.arange(found.shape[1])[:, None]
    return np.arange(found.shape[2]) // chunk == np.trunc(p / chunk)


def from_the_last(chunk: Any = None, M: int = 0, **_: Any) -> dict[str, Any]:
    return {"chunk": chunk and chunk + 1}


@clause(
    KEYS,
    8,
    false=[without("chunk"), answering(KEYS, towards_zero), given(KEYS, from_the_last)],
)
def row_and_key_stand_in_the_same_run(keys: Function) -> None:
    rows = [[0, 1, 2]] * 3 + [[3, 4]] * 2
    assert seen(keys, 1, 5, 5, chunk=3) == [rows]
    assert seen(keys, 1, 2, 5, chunk=3, offset=numbers(-1)) == [[[], [0, 1, 2]]]


def restarted(B: int, segments: Any = None, **_: Any) -> dict[str, Any]:
    return {"offset": np.zeros(B, int)} if segments is not None else {}


@clause(
    KEYS,
    9,
    false=[
        without("segments"),
        given(KEYS, restarted),
        given(KEYS, lambda segments=None, **_: {
            "segments": segments and tuple(np.maximum(x, 0) for x in segments)}),
    ],
)  # fmt: skip
def a_row_sees_its_own_segment_alone(keys: Function) -> None:
    segments = numbers([0, 1, 1]), numbers([-1, 0, 0, 1, 1])
    assert seen(keys, 1, 3, 5, segments=segments) == [[[1, 2], [3, 4], [3, 4]]]
    assert seen(keys, 1, 3, 5, segments=segments, causal=True) == [[[1, 2], [3], [3, 4]]]
    padding = numbers([-1]), numbers([-1, 0, -1])
    assert seen(keys, 1, 1, 3, segments=padding) == [[[0, 2]]]


def lenient(**x: Any) -> ndarray:
    """Twin: counts that are none mean no limit, and one number a window of that many."""
    window = x.get("window")
    if not isinstance(window, tuple) or len(window) != 2 or any((c or 0) < 0 for c in window):
        x["window"] = None
    x["chunk"] = x.get("chunk") or None
    if x.get("lengths") is not None:
        x["lengths"] = np.minimum(x["lengths"], x["M"])
    return spec.visible_keys(**x)


@clause(KEYS, 10, false=lenient)
def counts_that_are_none_are_refused(keys: Function) -> None:
    size = {"B": 1, "N": 2, "M": 3}
    for window in (2, (-1, 0), (1, 0.5), (1, 1, 1)):
        assert refuses(keys, "window: wanted", window=window, **size)
    assert refuses(keys, "chunk: wanted", chunk=0, **size)
    assert refuses(keys, "lengths: wanted", lengths=numbers(4), **size)
    assert refuses(keys, "query_lengths: wanted", query_lengths=numbers(3), **size)
    assert refuses(keys, "segments: wanted", segments=numbers([0, 0]), **size)
    assert refuses(keys, "pinned: wanted", pinned=-1, **size)
