"""Masks inverted, added, at a sentinel, of the wrong head; rows that see nothing."""

import math

import numpy as np

from ._pieces import add, drop, hide, scores, softmax


def scaled_dot_product_attention_mask_inverted(query, key, value, mask=None, keep=None, p=0.0):
    score = scores(query, key)
    if mask is not None:
        score = hide(score, ~mask if mask.dtype == bool else mask)
    return drop(softmax(score), keep, p) @ value


def scaled_dot_product_attention_mask_added(query, key, value, mask=None, keep=None, p=0.0):
    score = scores(query, key)
    score = score if mask is None else add(score, mask.astype(score.dtype))
    return drop(softmax(score), keep, p) @ value


def scaled_dot_product_attention_mask_multiplied(query, key, value, mask=None, keep=None, p=0.0):
    """Hidden scores become 0, and weigh."""
    score = scores(query, key)
    if mask is not None:
        score = score * mask if mask.dtype == bool else add(score, mask)
    return drop(softmax(score), keep, p) @ value


def scaled_dot_product_attention_mask_without_effect(
    query, key, value, mask=None, keep=None, p=0.0
):
    """The exponent has lost its sign."""
    score = scores(query, key)
    if mask is not None:
        score = score + ~mask * score.dtype.type(-1e-9) if mask.dtype == bool else add(score, mask)
    return drop(softmax(score), keep, p) @ value


def scaled_dot_product_attention_masked_fill_dropped(
    query, key, value, mask=None, keep=None, p=0.0
):
    """The masked copy is computed, and the scores are used as they were."""
    score = scores(query, key)
    if mask is not None and mask.dtype == bool:
        np.where(mask, score, -np.inf)
    elif mask is not None:
        score = add(score, mask)
    return drop(softmax(score), keep, p) @ value


def scaled_dot_product_attention_mask_at_minus_10000(
    query, key, value, mask=None, keep=None, p=0.0
):
    score = scores(query, key)
    if mask is not None:
        hidden = ~mask if mask.dtype == bool else np.isneginf(mask)
        added = 0 if mask.dtype == bool else np.where(hidden, 0, mask)
        score = (score + np.where(hidden, -10000.0, added)).astype(score.dtype)
    return drop(softmax(score), keep, p) @ value


def scaled_dot_product_attention_filled_with_least(query, key, value, mask=None, keep=None, p=0.0):
    """finfo.min in place of minus infinity: a row that sees nothing averages."""
    score = scores(query, key)
    if mask is not None:
        hidden = ~mask if mask.dtype == bool else np.isneginf(mask)
        score = score if mask.dtype == bool else add(score, mask)
        score = np.where(hidden, np.finfo(score.dtype).min, score)
    return drop(softmax(score), keep, p) @ value


def scaled_dot_product_attention_empty_rows_nan(query, key, value, mask=None, keep=None, p=0.0):
    score = hide(scores(query, key), mask)
    with np.errstate(invalid="ignore"):
        weights = np.exp(score - score.max(axis=-1, keepdims=True))
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return drop(weights, keep, p) @ value


def scaled_dot_product_attention_masked_after_softmax(
    query, key, value, mask=None, keep=None, p=0.0
):
    """Hidden weights are set to zero, and what is left does not sum to one."""
    score = scores(query, key)
    boolean = mask is not None and mask.dtype == bool
    weights = softmax(score if boolean else hide(score, mask))
    return drop(weights * mask if boolean else weights, keep, p) @ value


def scaled_dot_product_attention_mask_transposed(query, key, value, mask=None, keep=None, p=0.0):
    if mask is not None and mask.shape[-1] == mask.shape[-2]:
        mask = mask.swapaxes(-1, -2)
    return drop(softmax(hide(scores(query, key), mask)), keep, p) @ value


def scaled_dot_product_attention_mask_of_first_head(query, key, value, mask=None, keep=None, p=0.0):
    if mask is not None and mask.ndim == 4:
        mask = mask[:, :1]
    return drop(softmax(hide(scores(query, key), mask)), keep, p) @ value


def scaled_dot_product_attention_mask_of_first_batch(
    query, key, value, mask=None, keep=None, p=0.0
):
    if mask is not None and mask.ndim == 4:
        mask = mask[:1]
    return drop(softmax(hide(scores(query, key), mask)), keep, p) @ value


def scaled_dot_product_attention_mask_of_first_query(
    query, key, value, mask=None, keep=None, p=0.0
):
    mask = None if mask is None else mask[..., :1, :]
    return drop(softmax(hide(scores(query, key), mask)), keep, p) @ value


def scaled_dot_product_attention_float_mask_as_boolean(
    query, key, value, mask=None, keep=None, p=0.0
):
    mask = None if mask is None else mask.astype(bool)
    return drop(softmax(hide(scores(query, key), mask)), keep, p) @ value


def scaled_dot_product_attention_float_mask_before_the_scale(
    query, key, value, mask=None, keep=None, p=0.0
):
    score = hide(query @ key.swapaxes(-1, -2), mask)
    score = score / query.dtype.type(math.sqrt(query.shape[-1]))
    return drop(softmax(score), keep, p) @ value


def scaled_dot_product_attention_float_mask_forgotten(
    query, key, value, mask=None, keep=None, p=0.0
):
    score = scores(query, key)
    if mask is not None and mask.dtype == bool:
        score = hide(score, mask)
    return drop(softmax(score), keep, p) @ value


def scaled_dot_product_attention_always_causal(query, key, value, mask=None, keep=None, p=0.0):
    score = hide(scores(query, key), mask)
    score = np.where(np.tri(*score.shape[-2:], dtype=bool), score, -np.inf).astype(query.dtype)
    return drop(softmax(score), keep, p) @ value


def scaled_dot_product_attention_last_key_off_by_one(
    query, key, value, mask=None, keep=None, p=0.0
):
    """``j < M - 1`` for ``j < M``."""
    score = hide(scores(query, key), mask)
    if key.shape[-2] > 1:
        score[..., -1] = -np.inf
    return drop(softmax(score), keep, p) @ value


def softmax_of_empty_rows_is_uniform(score, mask=None):
    hidden = hide(score, mask)
    weights, empty = softmax(hidden), np.isneginf(hidden).all(axis=-1, keepdims=True)
    return np.where(empty, 1 / score.shape[-1], weights).astype(score.dtype)


def softmax_over_the_queries(score, mask=None):
    return softmax(hide(score, mask).swapaxes(-1, -2)).swapaxes(-1, -2)


def softmax_without_maximum(score, mask=None):
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.exp(hide(score, mask))
        total = weights.sum(axis=-1, keepdims=True)
        return weights / np.where(total == 0, 1, total)


def causal_mask_strict(N, M):
    return np.tri(N, M, M - N - 1, dtype=bool)


def causal_mask_top_left(N, M):
    return np.tri(N, M, dtype=bool)
