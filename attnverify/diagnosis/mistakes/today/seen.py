"""What a row of an attention of today sees instead: its options, each read otherwise."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.packing import Visible
from attnverify.conventions.visibility import real_offset
from attnverify.spec.masks import visible_keys


def places(B: int, N: int, M: int, options: Any) -> tuple[ndarray, ndarray, ndarray]:
    """The number of each row, its position [B N 1], and the keys."""
    i = np.arange(N)[None, :, None]
    offset = real_offset({"B": B, "N": N, "M": M, **options})
    return i, i + np.asarray(offset)[:, None, None], np.arange(M)


def strictly_causal(B: int, N: int, M: int, **options: Any) -> ndarray:
    _, at, j = places(B, N, M, options)
    seen = visible_keys(B, N, M, **options)
    return seen & (j < at) if options.get("causal") else seen


def causal_in(within: Callable[[ndarray], ndarray], B: int, N: int, M: int, **o: Any) -> ndarray:
    """Causality that holds for some keys alone."""
    offset = real_offset({"B": B, "N": N, "M": M, **o})
    seen, every = (
        visible_keys(B, N, M, **o | new) for new in ({}, {"causal": False, "offset": offset})
    )
    return np.where(within(np.arange(M)), seen, every)


def window_of_rows(B: int, N: int, M: int, **options: Any) -> ndarray:
    """A window around the number of each row, and not its position."""
    i, _, j = places(B, N, M, options)
    left, right = options.get("window") or (None, None)
    seen = visible_keys(B, N, M, **options | {"window": None})
    seen = seen if left is None else seen & ((j >= i - left) | (j < options.get("pinned", 0)))
    return seen if right is None else seen & (j <= i + right)


def window_of_one_row(place: int, B: int, N: int, M: int, **options: Any) -> ndarray:
    """A left window that begins for every row where it does for the first or last one."""
    _, at, j = places(B, N, M, options)
    left, right = options.get("window") or (None, None)
    if left is None or not N:
        return visible_keys(B, N, M, **options)
    free = {"window": None if right is None else (None, right)}
    begun = (j >= at[:, [place]] - left) | (j < options.get("pinned", 0))
    return visible_keys(B, N, M, **options | free) & begun


def chunk_of_rows(B: int, N: int, M: int, **options: Any) -> ndarray:
    i, _, j = places(B, N, M, options)
    chunk = options.get("chunk")
    seen = visible_keys(B, N, M, **options | {"chunk": None})
    return seen if chunk is None else seen & (j // chunk == i // chunk)


def half_windows(B: int, N: int, M: int, **options: Any) -> ndarray:
    """A window of half as many keys on its left."""
    left, right = options.get("window") or (None, None)
    halved = options.get("window") and (None if left is None else left // 2, right)
    return visible_keys(B, N, M, **options | {"window": halved})


def pinned_for_all(B: int, N: int, M: int, **options: Any) -> ndarray:
    """Pinned keys that every row sees, those before them too."""
    offset = real_offset({"B": B, "N": N, "M": M, **options})
    free = {"causal": False, "window": None, "chunk": None, "pinned": 0, "offset": offset}
    first = np.arange(M) < options.get("pinned", 0)
    unordered = visible_keys(B, N, M, **options | free)
    return visible_keys(B, N, M, **options) | (first & unordered)


def window_added(B: int, N: int, M: int, **options: Any) -> ndarray:
    """
    The causal mask without what lies further on than the window's left count, and nothing hidden
    behind the row.
    """
    left, right = options.get("window") or (None, None)
    _, at, j = places(B, N, M, options)
    if left is None or not options.get("causal"):
        return visible_keys(B, N, M, **options)
    free = options | {"causal": False, "offset": real_offset({"B": B, "N": N, "M": M, **options})}
    seen = visible_keys(B, N, M, **free | {"window": None if right is None else (None, right)})
    return seen & ~((j > at) & (j <= at + left + 1))


def causal_further(step: int, B: int, N: int, M: int, **options: Any) -> ndarray:
    """Causality that ends so many keys further on."""
    _, at, j = places(B, N, M, options)
    free = options | {"causal": False, "offset": real_offset({"B": B, "N": N, "M": M, **options})}
    seen = visible_keys(B, N, M, **free)
    return seen & (j <= at + step) if options.get("causal") else seen


def at_the_longest(B: int, N: int, M: int, **options: Any) -> ndarray:
    """Lengths written as a mask [B M] whose rows begin at multiples of the longest length."""
    lengths = options.get("lengths")
    if lengths is None:
        return visible_keys(B, N, M, **options)
    free = options | {"lengths": None, "offset": real_offset({"B": B, "N": N, "M": M, **options})}
    flat = np.zeros(B * M, bool)
    for b, length in enumerate(lengths):
        flat[b * max(lengths) :][:length] = True
    return visible_keys(B, N, M, **free) & flat.reshape(B, 1, M)


def with_option(name: str, change: Callable[..., Any], B: int, N: int, M: int, **o: Any) -> ndarray:
    """One option changed, where it is given: ``change`` takes it and the number of keys."""
    return visible_keys(B, N, M, **o | ({name: change(o[name], M)} if o.get(name) else {}))


def one_side(side: int, change: Callable[[int], int | None], window: Any, M: int) -> Any:
    """A window of which one side is another, where it has one."""
    given = list(window)
    given[side] = None if given[side] is None else change(given[side])
    return tuple(given)


def shifted(step: int, B: int, N: int, M: int, **options: Any) -> ndarray:
    """Rows at another position."""
    offset = real_offset({"B": B, "N": N, "M": M, **options})
    return visible_keys(B, N, M, **options | {"offset": np.asarray(offset) + step})


EDGES: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("a left window of one key more", "window", partial(one_side, 0, lambda left: left + 1)),
    (
        "a right window of one key less",
        "window",
        partial(one_side, 1, lambda right: max(right - 1, 0)),
    ),
    ("a right window of one key more", "window", partial(one_side, 1, lambda right: right + 1)),
    ("the left side of windows ignored", "window", partial(one_side, 0, lambda left: None)),
    ("the right side of windows ignored", "window", partial(one_side, 1, lambda right: None)),
    ("one pinned key less", "pinned", lambda pinned, M: pinned - 1),
    ("one pinned key more", "pinned", lambda pinned, M: pinned + 1),
    ("chunks of one key less", "chunk", lambda chunk, M: max(chunk - 1, 1)),
    ("chunks of one key more", "chunk", lambda chunk, M: chunk + 1),
)
"""Options that reach to another key."""


TILES = (16, 32, 64, 128)
VISIBLE: tuple[tuple[str, Visible], ...] = (
    ("a causal mask that hides the row's own key too", strictly_causal),
    ("a window counted from a row's number in its call, not from its position", window_of_rows),
    *(
        (
            f"a left window that begins for every row where that of the {which} row does",
            partial(window_of_one_row, place),
        )
        for which, place in (("first", 0), ("last", -1))
    ),
    ("chunks counted from a row's number in its call, not from its position", chunk_of_rows),
    ("a left window of half as many keys", half_windows),
    (
        "a window's left count added to the causal diagonal, not subtracted: old keys are seen, "
        "and keys of the future behind it",
        window_added,
    ),
    ("pinned keys that every row sees, those ahead of it too", pinned_for_all),
    (
        "lengths as a mask whose rows begin at multiples of the longest length, not of M",
        at_the_longest,
    ),
    *((words, partial(with_option, name, change)) for words, name, change in EDGES),
    ("rows one position too far on", partial(shifted, 1)),
    ("rows one position too far back", partial(shifted, -1)),
    *(
        (words.format(size=size), partial(causal_in, partial(within, size)))
        for size in TILES
        for words, within in (
            ("causality in the first tile of {size} keys alone", lambda size, j: j < size),
            ("no causality in the first tile of {size} keys", lambda size, j: j >= size),
        )
    ),
)
"""What is seen instead, of the options of a call."""
