"""Online softmax over tiles of keys, tiles of queries, partial results that are merged."""

import math

import numpy as np

from ._pieces import drop, hide, scores, softmax

TILE = 16


def _guarded(top):
    return np.where(np.isneginf(top), 0, top)


def _online(query, key, value, mask, keep, p, rescale_sum=True, rescale_output=True, guard=True):
    """The online softmax; what it leaves out is what the kernels below leave out."""
    score = hide(scores(query, key), mask)
    top = np.full((*score.shape[:-1], 1), -np.inf, query.dtype)
    total, output = np.zeros_like(top), np.zeros((*score.shape[:-1], value.shape[-1]), query.dtype)
    for start in range(0, key.shape[-2], TILE):
        tile = score[..., start : start + TILE]
        new = np.maximum(top, tile.max(axis=-1, keepdims=True))
        with np.errstate(invalid="ignore"):
            base = _guarded(new) if guard else new
            weights, factor = np.exp(tile - base), np.exp(top - base)
        total = (total * factor if rescale_sum else total) + weights.sum(axis=-1, keepdims=True)
        kept = drop(weights, None if keep is None else _tile_of(keep, score, start), p)
        output = output * factor if rescale_output else output
        output, top = output + kept @ value[..., start : start + TILE, :], new
    return output / np.where(total == 0, 1, total)


def _tile_of(mask, score, start):
    return np.broadcast_to(mask, score.shape)[..., start : start + TILE]


def scaled_dot_product_attention_output_not_rescaled(
    query, key, value, mask=None, keep=None, p=0.0
):
    return _online(query, key, value, mask, keep, p, rescale_output=False)


def scaled_dot_product_attention_sum_not_rescaled(query, key, value, mask=None, keep=None, p=0.0):
    return _online(query, key, value, mask, keep, p, rescale_sum=False)


def scaled_dot_product_attention_nothing_rescaled(query, key, value, mask=None, keep=None, p=0.0):
    return _online(query, key, value, mask, keep, p, rescale_sum=False, rescale_output=False)


def scaled_dot_product_attention_first_tile_hidden(query, key, value, mask=None, keep=None, p=0.0):
    return _online(query, key, value, mask, keep, p, guard=False)


def scaled_dot_product_attention_last_tile_dropped(query, key, value, mask=None, keep=None, p=0.0):
    score = hide(scores(query, key), mask)
    M = key.shape[-2]
    if M > TILE:
        score = np.where(np.arange(M) < M // TILE * TILE, score, -np.inf).astype(query.dtype)
    return drop(softmax(score), keep, p) @ value


def scaled_dot_product_attention_tail_not_masked(query, key, value, mask=None, keep=None, p=0.0):
    """Keys are padded to whole tiles with zeros, and the padding is seen."""
    score = hide(scores(query, key), mask)
    padding = np.zeros((*score.shape[:-1], -key.shape[-2] % TILE), score.dtype)
    weights = softmax(np.concatenate([score, padding], axis=-1))[..., : key.shape[-2]]
    return drop(weights, keep, p) @ value


def scaled_dot_product_attention_last_tile_twice(query, key, value, mask=None, keep=None, p=0.0):
    """The last tile begins a whole tile before the end and counts some keys again."""
    M, score = key.shape[-2], hide(scores(query, key), mask)
    starts = [min(start, max(M - TILE, 0)) for start in range(0, M, TILE)]
    columns = np.concatenate([np.arange(start, min(start + TILE, M)) for start in starts])
    weights = drop(
        softmax(score[..., columns]),
        None if keep is None else (np.broadcast_to(keep, score.shape)[..., columns]),
        p,
    )
    return weights @ value[..., columns, :]


def scaled_dot_product_attention_halves_averaged(query, key, value, mask=None, keep=None, p=0.0):
    """Two halves of the keys, each with a softmax of its own, merged by their mean."""
    score, half = hide(scores(query, key), mask), key.shape[-2] // 2
    if half < TILE:
        return drop(softmax(score), keep, p) @ value
    first, second = softmax(score[..., :half]), softmax(score[..., half:])
    return drop(np.concatenate([first, second], axis=-1) / 2, keep, p) @ value


def scaled_dot_product_attention_merged_by_sums(query, key, value, mask=None, keep=None, p=0.0):
    """Two halves merged by their sums, each of which is relative to a maximum of its own."""
    score, half = hide(scores(query, key), mask), key.shape[-2] // 2
    if half < TILE:
        return drop(softmax(score), keep, p) @ value
    parts = [score[..., :half], score[..., half:]]
    weights = [np.exp(part - _guarded(part.max(axis=-1, keepdims=True))) for part in parts]
    joined = np.concatenate(weights, axis=-1)
    total = joined.sum(axis=-1, keepdims=True)
    return drop(joined / np.where(total == 0, 1, total), keep, p) @ value


def scaled_dot_product_attention_softmax_in_each_tile(
    query, key, value, mask=None, keep=None, p=0.0
):
    score = hide(scores(query, key), mask)
    tiles = [score[..., start : start + TILE] for start in range(0, key.shape[-2], TILE)]
    weights = np.concatenate([softmax(tile) for tile in tiles], axis=-1)
    return drop(weights, keep, p) @ value


def scaled_dot_product_attention_last_queries_lost(query, key, value, mask=None, keep=None, p=0.0):
    """Whole tiles of queries are written, and the rest stays zero."""
    output = drop(softmax(hide(scores(query, key), mask)), keep, p) @ value
    N = query.shape[-2]
    output[..., N // TILE * TILE if N > TILE else N :, :] = 0
    return output


def scaled_dot_product_attention_mask_of_first_tile(query, key, value, mask=None, keep=None, p=0.0):
    """The pointer into the mask does not move on with the keys."""
    score = scores(query, key)
    if mask is not None:
        mask = np.broadcast_to(mask, score.shape)[..., np.arange(key.shape[-2]) % TILE]
    return drop(softmax(hide(score, mask)), keep, p) @ value


def scaled_dot_product_attention_partly_hidden_tile_skipped(
    query, key, value, mask=None, keep=None, p=0.0
):
    """A tile is skipped where any of its keys is hidden, instead of all of them."""
    score = hide(scores(query, key), mask)
    for start in range(0, key.shape[-2] - TILE + 1, TILE):
        tile = score[..., start : start + TILE]
        some = np.isneginf(tile).any(axis=-1, keepdims=True)
        score[..., start : start + TILE] = np.where(some, -np.inf, tile)
    return drop(softmax(score), keep, p) @ value


def scaled_dot_product_attention_first_64_columns(query, key, value, mask=None, keep=None, p=0.0):
    score = query[..., :64] @ key[..., :64].swapaxes(-1, -2)
    score = hide(score / query.dtype.type(math.sqrt(query.shape[-1])), mask)
    return drop(softmax(score), keep, p) @ value


def scaled_dot_product_attention_value_columns_lost(query, key, value, mask=None, keep=None, p=0.0):
    """The output is as wide as the values, and filled as far as the queries are wide."""
    output = drop(softmax(hide(scores(query, key), mask)), keep, p) @ value
    output[..., query.shape[-1] :] = 0
    return output


def scaled_dot_product_attention_keys_beyond_64_lost(
    query, key, value, mask=None, keep=None, p=0.0
):
    score = hide(scores(query, key), mask)
    score = np.where(np.arange(key.shape[-2]) < 64, score, -np.inf).astype(query.dtype)
    return drop(softmax(score), keep, p) @ value
