"""
Mistakes of kernels that walk over tiles of keys: what is not carried from one tile to the next, the
last tile, partial results merged wrongly. Each is another way from scores to weights.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.reference import attention
from attnverify.reference.staged_attention import Change, StagedAttention

Tiles = tuple[ndarray, ...]
"""The scores of each tile, minus infinity where a pair is hidden."""

Rescaling = Callable[[ndarray], Any]
"""What becomes of the factor that brings what came before to a new maximum."""

SIZES = (16, 32, 64, 128, 8, 4)


def tile_mistakes() -> Iterator[tuple[str, Change]]:
    """Words and change of each mistake at each size of a tile; where one tile is all, none is."""
    yield from ((words, in_tiles(weigh)) for words, weigh in tile_softmaxes())
    for size in SIZES:
        for unit in (1.0, LOG2_E):
            yield BLIND.format(size=size), partial(blind, size, unit)
        for which, at in (("first", 0), ("last", -1)):
            yield KEPT_AT_0.format(which=which, size=size), partial(kept_at_0, size, at)
        for words, factor in GROWING.items():
            yield words.format(size=size), partial(growing, size, factor)
    for rows, keys in CROSSING:
        yield CROSSED.format(rows=rows, keys=keys), partial(crossed, rows, keys)


def kept_at_0(size: int, at: int, s: StagedAttention) -> StagedAttention:
    """Where the tile that is visited first is hidden, the maximum is 0 at least."""
    held = np.float64 if s.dtype == "float64" else np.float32

    def weigh(score: ndarray) -> ndarray:
        is_hidden = np.isneginf(split(score, size)[at]).all(axis=-1, keepdims=True)
        top = np.where(is_hidden, np.maximum(largest(score), 0.0), largest(score))
        e = np.exp(score - top).astype(held).astype(np.float64)
        return normalised(e, e.sum(axis=-1, keepdims=True))

    return in_tiles(weigh)(s)


KEPT_AT_0 = (
    "a running maximum that is set to 0 where the {which} tile of {size} keys is hidden, and is "
    "never lowered again, so that rows far below 0 underflow"
)


LOG2_E = float(1.0 / np.log(2.0))
"""What kernels multiply scores with that take powers of 2."""


GROWING: dict[str, Callable[[StagedAttention], float]] = {
    "the scale multiplied by log2(e) again in each tile of {size} keys, so that it grows from tile "
    "to tile": lambda s: LOG2_E,
    "the scale multiplied by itself again in each tile of {size} keys": lambda s: s.scale,
}


def growing(
    size: int, factor: Callable[[StagedAttention], float], s: StagedAttention
) -> StagedAttention:
    """A factor that each tile multiplies what the one before left."""
    tile = np.arange(s.shape[-1]) // size
    return s if "score" in s.inputs else replace(s, scale=s.scale * factor(s) ** tile)


CROSSING = ((16, 32), (32, 64), (64, 128), (16, 64), (32, 128), (8, 16), (4, 8))
"""Rows and keys of a tile, of which the diagonal crosses more than begin at it."""
CROSSED = (
    "tiles of {keys} keys that run past the diagonal of tiles of {rows} rows without a mask, so "
    "that later keys are seen, and keys counted twice"
)


def crossed(rows: int, keys: int, s: StagedAttention) -> StagedAttention:
    """
    Whole tiles of keys up to the first row's own, without a mask; then from this key on with it.
    """
    if s.causal is None:
        return s
    N, M = s.shape[-2:]
    i, j = np.arange(N)[:, None], np.arange(M)
    first = np.maximum(M - N + i // rows * rows, 0)
    whole = j < -(-first // keys) * keys
    rest = (j >= first) & (j <= M - N + i)
    counted = np.where(whole & rest, np.log(2.0), 0.0)
    return replace(
        s,
        causal=whole | rest,
        weigh=lambda score, visible: attention.weigh(score + counted, visible),
    )


def blind(size: int, unit: float, s: StagedAttention) -> StagedAttention:
    """In this unit the lowest number of a format may be minus infinity."""
    held = np.float64 if s.dtype == "float64" else np.float32

    def weigh(score: ndarray) -> ndarray:
        lost = np.isneginf((score * unit).astype(held))
        return unguarded(np.where(lost, -np.inf, score), size=size)

    return replace(in_tiles(weigh)(s), empty=np.nan)


BLIND = (
    "minus infinity subtracted from itself, which is NaN, where the first tile of {size} keys is "
    "hidden, or the whole row"
)


def tile_softmaxes() -> Iterator[tuple[str, Callable[[ndarray], ndarray]]]:
    """Words of each and what it makes of scores, minus infinity where a pair is hidden."""
    for words, mistake in TILE_MISTAKES.items():
        for size in SIZES:
            yield words.format(size=size), partial(mistake, size=size)
    for words, merge in MERGES.items():
        for least in (2, 32):
            yield words.format(least=least), partial(merge, least=least)


def in_tiles(weigh: Callable[[ndarray], ndarray]) -> Change:
    def change(s: StagedAttention) -> StagedAttention:
        def weigh_visible(score: ndarray, visible: ndarray) -> ndarray:
            with np.errstate(all="ignore"):
                return weigh(np.where(visible, score, -np.inf))

        return replace(s, weigh=weigh_visible)

    return change


def split(score: ndarray, size: int) -> Tiles:
    return tuple(score[..., at : at + size] for at in range(0, score.shape[-1], size))


def largest(score: ndarray) -> ndarray:
    """Return the maximum of each row; 0 where a row sees nothing."""
    top = score.max(axis=-1, keepdims=True)
    return np.where(np.isneginf(top), 0.0, top)


def softmax(score: ndarray) -> ndarray:
    e = np.exp(score - largest(score))
    return normalised(e, e.sum(axis=-1, keepdims=True))


def normalised(e: ndarray, total: ndarray) -> ndarray:
    return e / np.where(total == 0, 1, total)


def fully(factor: ndarray) -> ndarray:
    return factor


def not_at_all(factor: ndarray) -> float:
    return 1.0


def by_the_inverse(factor: ndarray) -> ndarray:
    return 1 / np.where(factor == 0, 1, factor)


def carried(
    score: ndarray, size: int, of_sum: Rescaling = fully, of_output: Rescaling = fully
) -> tuple[ndarray, ndarray]:
    """
    Return the exponentials and their sum as an online softmax carries them, each rescaled in its
    own way by the factor that a tile with a higher maximum owes to what came before.
    """
    top, total = np.full((*score.shape[:-1], 1), -np.inf), np.zeros((*score.shape[:-1], 1))
    weights: list[ndarray] = []
    for tile in split(score, size):
        new = np.maximum(top, tile.max(axis=-1, keepdims=True))
        base = np.where(np.isneginf(new), 0.0, new)
        e, factor = np.exp(tile - base), np.exp(top - base)
        total = total * of_sum(factor) + e.sum(axis=-1, keepdims=True)
        weights, top = [w * of_output(factor) for w in weights] + [e], new
    return np.concatenate(weights, axis=-1), total


def accumulated(score: ndarray, size: int, **rescaling: Rescaling) -> ndarray:
    """Return the weights of an online softmax that rescales in another way."""
    return normalised(*carried(score, size, **rescaling))


def last_tile_unshifted(score: ndarray, size: int) -> ndarray:
    """The last tile goes into the sum without the maximum subtracted."""
    top, at = largest(score), (score.shape[-1] - 1) // size * size
    e = np.exp(score - top)
    total = e[..., :at].sum(axis=-1, keepdims=True)
    return normalised(e, total + np.exp(score[..., at:]).sum(axis=-1, keepdims=True))


def lanes_added(score: ndarray, size: int) -> ndarray:
    """Each lane takes every size-th key, and its sum is relative to its own maximum."""
    total = np.zeros((*score.shape[:-1], 1))
    for lane in range(min(size, score.shape[-1])):
        own = score[..., lane::size]
        total = total + np.exp(own - largest(own)).sum(axis=-1, keepdims=True)
    return normalised(np.exp(score - largest(score)), total)


def without_last_tile(score: ndarray, size: int) -> ndarray:
    M = score.shape[-1]
    kept = np.arange(M) < (M // size * size if size < M else M)
    return softmax(np.where(kept, score, -np.inf))


def without_any_last_tile(score: ndarray, size: int) -> ndarray:
    """The last tile is left out, full or not, where there is another."""
    M = score.shape[-1]
    kept = np.arange(M) < ((M - 1) // size * size or M)
    return softmax(np.where(kept, score, -np.inf))


def with_padding_seen(score: ndarray, size: int) -> ndarray:
    padding = np.zeros((*score.shape[:-1], -score.shape[-1] % size))
    return softmax(np.concatenate([score, padding], axis=-1))[..., : score.shape[-1]]


def with_last_tile_overlapping(score: ndarray, size: int) -> ndarray:
    """The last tile begins a whole tile before the end, and what it shares counts twice."""
    M = score.shape[-1]
    twice = (np.arange(M) >= M - size) & (np.arange(M) < M // size * size) & (size < M)
    return softmax(score + np.where(twice, np.log(2.0), 0.0))


def without_partly_hidden(score: ndarray, size: int) -> ndarray:
    """A whole tile is skipped where one of its keys is hidden."""
    whole = [
        np.where(np.isneginf(tile).any(axis=-1, keepdims=True), -np.inf, tile)
        if tile.shape[-1] == size
        else tile
        for tile in split(score, size)
    ]
    return softmax(np.concatenate(whole, axis=-1))


def unguarded(score: ndarray, size: int) -> ndarray:
    """NaN where nothing has been seen yet: minus infinity less minus infinity."""
    first = split(score, size)[0]
    blind = np.isneginf(first).all(axis=-1, keepdims=True)
    return np.where(blind, np.nan, softmax(score))


def answered_by_0(score: ndarray, size: int) -> ndarray:
    """The same NaN taken for the sum of a row without keys."""
    weights = unguarded(score, size)
    return np.where(np.isnan(weights), 0.0, weights)


def averaged_halves(score: ndarray, least: int) -> ndarray:
    half = score.shape[-1] // 2
    if 2 * half < least:
        return softmax(score)
    parts = [softmax(part) for part in (score[..., :half], score[..., half:])]
    return np.concatenate(parts, axis=-1) / 2


def merged_by_sums(score: ndarray, least: int) -> ndarray:
    """Sums that are relative to two maxima, added as if they were relative to one."""
    half = score.shape[-1] // 2
    if 2 * half < least:
        return softmax(score)
    e = [np.exp(part - largest(part)) for part in (score[..., :half], score[..., half:])]
    joined = np.concatenate(e, axis=-1)
    return normalised(joined, joined.sum(axis=-1, keepdims=True))


def with_last_key_again(score: ndarray, size: int) -> ndarray:
    times = np.ones(score.shape[-1])
    times[-1] += -len(times) % size
    return softmax(score + np.log(times))


TILE_MISTAKES: dict[str, Callable[..., ndarray]] = {
    "an output that is not rescaled when the maximum rises, in tiles of {size} keys": partial(
        accumulated, of_output=not_at_all
    ),
    "a sum that is not rescaled when the maximum rises, in tiles of {size} keys": partial(
        accumulated, of_sum=not_at_all
    ),
    "nothing rescaled when the maximum rises, in tiles of {size} keys": partial(
        accumulated, of_sum=not_at_all, of_output=not_at_all
    ),
    "an output rescaled by the inverse of its factor when the maximum rises, in tiles of {size} "
    "keys": partial(accumulated, of_output=by_the_inverse),
    "the maximum not subtracted in the last tile's share of the sum ({size} keys a tile)": (
        last_tile_unshifted
    ),
    "sums of {size} lanes added as they are, each relative to the maximum of its own lane": (
        lanes_added
    ),
    "the keys of the last tile left out where it is not full ({size} keys a tile)": (
        without_last_tile
    ),
    "the keys of the last tile left out, full or not ({size} keys a tile)": without_any_last_tile,
    "the padding of the last tile seen as keys of score 0 ({size} keys a tile)": with_padding_seen,
    "keys behind the end of the last tile not hidden: the last key counted again for each of them, "
    "up to {size} keys": with_last_key_again,
    "a last tile that begins {size} keys before the end, so that keys count twice": (
        with_last_tile_overlapping
    ),
    "a softmax of its own in each tile of {size} keys": lambda score, size: np.concatenate(
        [softmax(tile) for tile in split(score, size)], axis=-1
    ),
    "tiles of {size} keys skipped where one of their keys is hidden": without_partly_hidden,
    "an online softmax without a guard where the first tile of {size} keys is hidden": unguarded,
    "an online softmax without a guard where the first tile of {size} keys is hidden, and its NaN "
    "taken for a row without keys, of which the answer is 0": answered_by_0,
}
MERGES: dict[str, Callable[..., ndarray]] = {
    "two halves of the keys merged by their mean, from {least} keys on": averaged_halves,
    "two halves of the keys merged by sums that have different maxima, from {least} keys on": (
        merged_by_sums
    ),
}
