"""The scale forgotten, applied twice, of another width; dropout scaled wrongly."""

import math

import numpy as np

from ._pieces import drop, hide, scores, softmax


def scaled_dot_product_attention_unscaled(query, key, value, mask=None, keep=None, p=0.0):
    return drop(softmax(hide(query @ key.swapaxes(-1, -2), mask)), keep, p) @ value


def scaled_dot_product_attention_scaled_twice(query, key, value, mask=None, keep=None, p=0.0):
    query = query / query.dtype.type(math.sqrt(query.shape[-1]))
    return drop(softmax(hide(scores(query, key), mask)), keep, p) @ value


def _scaled_by(width, query, key, value, mask, keep, p):
    score = query @ key.swapaxes(-1, -2) / query.dtype.type(math.sqrt(width))
    return drop(softmax(hide(score, mask)), keep, p) @ value


def scaled_dot_product_attention_scaled_by_value_width(
    query, key, value, mask=None, keep=None, p=0.0
):
    return _scaled_by(value.shape[-1], query, key, value, mask, keep, p)


def scaled_dot_product_attention_scaled_by_all_heads(
    query, key, value, mask=None, keep=None, p=0.0
):
    return _scaled_by(query.shape[1] * query.shape[-1], query, key, value, mask, keep, p)


def scaled_dot_product_attention_scaled_by_keys(query, key, value, mask=None, keep=None, p=0.0):
    return _scaled_by(key.shape[-2], query, key, value, mask, keep, p)


def scaled_dot_product_attention_scaled_up(query, key, value, mask=None, keep=None, p=0.0):
    score = query @ key.swapaxes(-1, -2) * query.dtype.type(math.sqrt(query.shape[-1]))
    return drop(softmax(hide(score, mask)), keep, p) @ value


def scaled_dot_product_attention_log2e_rounded(query, key, value, mask=None, keep=None, p=0.0):
    """exp2 of a score times 1.44."""
    score = hide(scores(query, key), mask) * query.dtype.type(1.44)
    top = score.max(axis=-1, keepdims=True)
    weights = np.exp2(score - np.where(np.isneginf(top), 0, top))
    total = weights.sum(axis=-1, keepdims=True)
    return drop(weights / np.where(total == 0, 1, total), keep, p) @ value


def scaled_dot_product_attention_epsilon_in_the_sum(query, key, value, mask=None, keep=None, p=0.0):
    score = hide(scores(query, key), mask)
    top = score.max(axis=-1, keepdims=True)
    weights = np.exp(score - np.where(np.isneginf(top), 0, top))
    weights = weights / (weights.sum(axis=-1, keepdims=True) + query.dtype.type(1e-3))
    return drop(weights, keep, p) @ value


def scaled_dot_product_attention_dropout_unscaled(query, key, value, mask=None, keep=None, p=0.0):
    weights = softmax(hide(scores(query, key), mask))
    return (weights if keep is None else weights * keep) @ value


def scaled_dot_product_attention_dropout_divided_by_p(
    query, key, value, mask=None, keep=None, p=0.0
):
    weights = softmax(hide(scores(query, key), mask))
    return (weights if keep is None else weights * keep / weights.dtype.type(p or 1)) @ value


def scaled_dot_product_attention_dropout_inverted(query, key, value, mask=None, keep=None, p=0.0):
    weights = softmax(hide(scores(query, key), mask))
    return drop(weights, None if keep is None else ~keep, p) @ value


def scaled_dot_product_attention_dropout_before_the_softmax(
    query, key, value, mask=None, keep=None, p=0.0
):
    return softmax(hide(drop(scores(query, key), keep, p), mask)) @ value


def scaled_dot_product_attention_dropout_renormalised(
    query, key, value, mask=None, keep=None, p=0.0
):
    """The dropped keys are hidden before the softmax, and the rest sums to one again."""
    score = hide(scores(query, key), mask)
    if keep is not None:
        score = np.where(keep, score, -np.inf).astype(query.dtype)
    return softmax(score) @ value


def scaled_dot_product_attention_dropout_ignored(query, key, value, mask=None, keep=None, p=0.0):
    return softmax(hide(scores(query, key), mask)) @ value


def additive_attention_scaled(
    query, key, value, w_query, w_key, w_score, mask=None, keep=None, p=0.0
):
    """A scale that the additive score does not have."""
    hidden = np.tanh((query @ w_query.T)[:, :, None] + (key @ w_key.T)[:, None])
    score = hidden @ w_score / query.dtype.type(math.sqrt(len(w_score)))
    return drop(softmax(hide(score, mask)), keep, p) @ value


def additive_attention_tanh_last(
    query, key, value, w_query, w_key, w_score, mask=None, keep=None, p=0.0
):
    hidden = (query @ w_query.T)[:, :, None] + (key @ w_key.T)[:, None]
    return drop(softmax(hide(np.tanh(hidden @ w_score), mask)), keep, p) @ value
