"""Backward passes with a term missing."""

import math

import numpy as np

from ._pieces import drop, hide, scores, softmax


def _backward(d_output, query, key, value, mask, keep, p, **wrong):
    """
    The gradients by query, key, value and a float mask; ``wrong`` replaces one of the steps.
    """
    scale = wrong.get("scale", 1 / math.sqrt(query.shape[-1]))
    weights = softmax(hide(scores(query, key), mask))
    kept = drop(weights, keep, p)
    d_value = wrong.get("value_weights", kept).swapaxes(-1, -2) @ d_output
    d_kept = d_output @ value.swapaxes(-1, -2)
    d_weights = d_kept if wrong.get("no_dropout") else drop(d_kept, keep, p)
    delta = (weights * d_weights).sum(axis=-1, keepdims=True)
    d_score = weights * (d_weights - wrong.get("delta", delta))
    d_query = d_score @ key * query.dtype.type(wrong.get("query_scale", scale))
    d_key = d_score.swapaxes(-1, -2) @ query * query.dtype.type(scale)
    d_mask = wrong.get("mask_grad", _summed)(d_score, mask)
    return tuple(np.asarray(x, query.dtype) for x in (d_query, d_key, d_value, *d_mask))


def _summed(d_score, mask):
    if mask is None or mask.dtype == bool:
        return ()
    shape = (1,) * (d_score.ndim - mask.ndim) + mask.shape
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return (d_score.sum(axis=axes, keepdims=True).reshape(mask.shape),)


def _first(d_score, mask):
    """The mask's gradient of the first batch and head only."""
    if mask is None or mask.dtype == bool:
        return ()
    shape = (1,) * (d_score.ndim - mask.ndim) + mask.shape
    for axis, size in enumerate(shape):
        d_score = d_score.take([0], axis=axis) if size == 1 else d_score
    return (d_score.reshape(mask.shape),)


def scaled_dot_product_attention_grad_query_not_scaled(
    d_output, query, key, value, mask=None, keep=None, p=0.0
):
    return _backward(d_output, query, key, value, mask, keep, p, query_scale=1.0)


def scaled_dot_product_attention_grad_not_scaled(
    d_output, query, key, value, mask=None, keep=None, p=0.0
):
    return _backward(d_output, query, key, value, mask, keep, p, scale=1.0)


def scaled_dot_product_attention_grad_without_delta(
    d_output, query, key, value, mask=None, keep=None, p=0.0
):
    return _backward(d_output, query, key, value, mask, keep, p, delta=0)


def scaled_dot_product_attention_grad_delta_of_other_rows(
    d_output, query, key, value, mask=None, keep=None, p=0.0
):
    """The row's sum of weights times gradients is taken over the queries."""
    weights = softmax(hide(scores(query, key), mask))
    d_weights = drop(d_output @ value.swapaxes(-1, -2), keep, p)
    delta = (weights * d_weights).sum(axis=-2, keepdims=True)
    return _backward(d_output, query, key, value, mask, keep, p, delta=delta)


def scaled_dot_product_attention_grad_without_dropout(
    d_output, query, key, value, mask=None, keep=None, p=0.0
):
    return _backward(d_output, query, key, value, mask, keep, p, no_dropout=True)


def scaled_dot_product_attention_grad_value_without_dropout(
    d_output, query, key, value, mask=None, keep=None, p=0.0
):
    weights = softmax(hide(scores(query, key), mask))
    return _backward(d_output, query, key, value, mask, keep, p, value_weights=weights)


def scaled_dot_product_attention_grad_value_without_mask(
    d_output, query, key, value, mask=None, keep=None, p=0.0
):
    weights = drop(softmax(scores(query, key)), keep, p)
    return _backward(d_output, query, key, value, mask, keep, p, value_weights=weights)


def scaled_dot_product_attention_grad_mask_not_summed(
    d_output, query, key, value, mask=None, keep=None, p=0.0
):
    return _backward(d_output, query, key, value, mask, keep, p, mask_grad=_first)


def scaled_dot_product_attention_grad_key_of_last_tile_lost(
    d_output, query, key, value, mask=None, keep=None, p=0.0
):
    """Whole tiles of 16 keys are written."""
    d_query, d_key, *others = _backward(d_output, query, key, value, mask, keep, p)
    M = key.shape[-2]
    d_key[..., M // 16 * 16 if M > 16 else M :, :] = 0
    return d_query, d_key, *others
