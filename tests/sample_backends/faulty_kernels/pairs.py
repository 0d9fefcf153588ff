"""Two mistakes in one kernel: both everywhere, or each in a branch of its own."""

import numpy as np

from ._pieces import drop, hide, scores, softmax
from .tiling import TILE, _guarded


def scaled_dot_product_attention_inverted_and_unscaled(
    query, key, value, mask=None, keep=None, p=0.0
):
    """True taken for hidden, in a kernel that forgets the scale too."""
    if mask is not None and mask.dtype == bool:
        mask = ~mask
    return drop(softmax(hide(query @ key.swapaxes(-1, -2), mask)), keep, p) @ value


def scaled_dot_product_attention_unscaled_and_output_not_rescaled(
    query, key, value, mask=None, keep=None, p=0.0
):
    """An online softmax without the scale, whose output is not rescaled between tiles."""
    score = hide(query @ key.swapaxes(-1, -2), mask)
    top, total = np.full((*score.shape[:-1], 1), -np.inf, query.dtype), 0
    output = np.zeros((*score.shape[:-1], value.shape[-1]), query.dtype)
    for start in range(0, key.shape[-2], TILE):
        at = slice(start, start + TILE)
        new = np.maximum(top, score[..., at].max(axis=-1, keepdims=True))
        weights = np.exp(score[..., at] - _guarded(new))
        total = total * np.exp(top - _guarded(new)) + weights.sum(axis=-1, keepdims=True)
        kept = keep if keep is None else np.broadcast_to(keep, score.shape)[..., at]
        output, top = output + drop(weights, kept, p) @ value[..., at, :], new
    return output / np.where(total == 0, 1, total)


def scaled_dot_product_attention_unscaled_or_inverted(
    query, key, value, mask=None, keep=None, p=0.0
):
    """A fast path without the scale where there is no mask; True taken for hidden where one is."""
    if mask is None:
        return drop(softmax(query @ key.swapaxes(-1, -2)), keep, p) @ value
    mask = ~mask if mask.dtype == bool else mask
    return drop(softmax(hide(scores(query, key), mask)), keep, p) @ value


def scaled_dot_product_attention_unscaled_when_masked(
    query, key, value, mask=None, keep=None, p=0.0
):
    """The scale is forgotten on the way with a mask alone."""
    score = scores(query, key) if mask is None else hide(query @ key.swapaxes(-1, -2), mask)
    return drop(softmax(score), keep, p) @ value


def scaled_dot_product_attention_dropout_unscaled_or_noise(
    query, key, value, mask=None, keep=None, p=0.0
):
    """Kept weights are not scaled; without dropout the output decays along the columns."""
    weights = softmax(hide(scores(query, key), mask))
    if keep is not None:
        return (weights * keep) @ value
    return weights @ (value * np.cos(np.arange(value.shape[-1]), dtype=value.dtype))
