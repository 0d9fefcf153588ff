"""The right pieces that the faulty kernels are put together from."""

import math

import numpy as np


def scores(query, key):
    return query @ key.swapaxes(-1, -2) * query.dtype.type(1 / math.sqrt(query.shape[-1]))


def hide(score, mask):
    """A boolean mask of which True may attend, or one of numbers that are added."""
    if mask is None:
        return score
    return np.where(mask, score, -np.inf) if mask.dtype == bool else add(score, mask)


def add(score, mask):
    """A mask of minus infinity hides whatever the score is."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(mask), -np.inf, score + mask).astype(score.dtype)


def softmax(score):
    """Zero in rows that see nothing."""
    top = score.max(axis=-1, keepdims=True)
    weights = np.exp(score - np.where(np.isneginf(top), 0, top))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def drop(weights, keep, p):
    return weights if keep is None else weights * keep / weights.dtype.type(1 - p)


def causal(query, key):
    N, M = query.shape[-2], key.shape[-2]
    return np.tril(np.ones((N, M), bool), M - N)


def both(visible, frontier):
    return frontier if visible is None else frontier & visible


def alibi_slopes(H):
    n = 2 ** (H.bit_length() - 1)
    slopes = [2 ** (-8 * (h + 1) / n) for h in range(n)]
    slopes += [2 ** (-4 * (2 * h + 1) / n) for h in range(H - n)]
    return np.array(slopes)[:, None, None]


def distances(query, key):
    N, M = query.shape[-2], key.shape[-2]
    return np.arange(M) - (np.arange(N)[:, None] + M - N)
