"""Axes exchanged, strides forgotten, heads and batches mixed up, narrow arithmetic."""

import math

import numpy as np

from ._pieces import alibi_slopes, both, causal, distances, drop, hide, scores, softmax


def _attend(query, key, value, mask, keep, p):
    return drop(softmax(hide(scores(query, key), mask)), keep, p) @ value


def scaled_dot_product_attention_positions_before_heads(
    query, key, value, mask=None, keep=None, p=0.0
):
    """Arrays are taken as [B N H D], as FlashAttention takes them."""
    if query.shape[1:3] != query.shape[2:0:-1] or query.shape[2] != key.shape[2]:
        return _attend(query, key, value, mask, keep, p)
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    return _attend(query, key, value, mask, keep, p).swapaxes(1, 2)


def scaled_dot_product_attention_viewed_for_transposed(
    query, key, value, mask=None, keep=None, p=0.0
):
    output = _attend(query, key, value, mask, keep, p)
    return output.swapaxes(1, 2).reshape(output.shape)


def scaled_dot_product_attention_strides_of_key_forgotten(
    query, key, value, mask=None, keep=None, p=0.0
):
    """The key is read in the order in which it lies in memory."""
    return _attend(query, key.ravel(order="K").reshape(key.shape), value, mask, keep, p)


def scaled_dot_product_attention_keys_of_first_head(query, key, value, mask=None, keep=None, p=0.0):
    return _attend(query, key[:, :1], value, mask, keep, p)


def scaled_dot_product_attention_values_of_first_batch(
    query, key, value, mask=None, keep=None, p=0.0
):
    return _attend(query, key, value[:1], mask, keep, p)


def scaled_dot_product_attention_keys_of_next_head(query, key, value, mask=None, keep=None, p=0.0):
    return _attend(query, np.roll(key, -1, axis=1), value, mask, keep, p)


def scaled_dot_product_attention_heads_in_pairs(query, key, value, mask=None, keep=None, p=0.0):
    """Two heads share keys and values, as grouped heads do."""
    group = np.arange(key.shape[1]) // 2
    return _attend(query, key[:, group], value[:, group], mask, keep, p)


def scaled_dot_product_attention_queries_reversed(query, key, value, mask=None, keep=None, p=0.0):
    return _attend(query, key, value, mask, keep, p)[..., ::-1, :].copy()


def scaled_dot_product_attention_computed_in_float32(
    query, key, value, mask=None, keep=None, p=0.0
):
    given = [x.astype(np.float32) for x in (query, key, value)]
    if mask is not None and mask.dtype != bool:
        mask = mask.astype(np.float32)
    return _attend(*given, mask, keep, p).astype(query.dtype)


def scaled_dot_product_attention_computed_in_float16(
    query, key, value, mask=None, keep=None, p=0.0
):
    """The products of a kernel for half precision, whatever it is given."""
    with np.errstate(over="ignore", invalid="ignore"):
        small = [x.astype(np.float16).astype(np.float32) for x in (query, key, value)]
    return _attend(*small, mask, keep, p).astype(query.dtype)


def _to_tf32(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)


def scaled_dot_product_attention_tf32(query, key, value, mask=None, keep=None, p=0.0):
    """Operands of both products in ten bits, as allow_tf32 lets them be."""
    score = _to_tf32(query) @ _to_tf32(key).swapaxes(-1, -2)
    score = hide(score / np.float32(math.sqrt(query.shape[-1])), mask).astype(np.float32)
    weights = drop(softmax(score), keep, p).astype(np.float32)
    return (_to_tf32(weights) @ _to_tf32(value)).astype(query.dtype)


def alibi_attention_tf32(query, key, value, visible=None):
    """The same with ALiBi's biases, which are added in float32."""
    score = _to_tf32(query) @ _to_tf32(key).swapaxes(-1, -2)
    score = score / np.float32(math.sqrt(query.shape[-1]))
    biases = alibi_slopes(query.shape[1]) * distances(query, key)
    score = hide((score + biases).astype(np.float32), both(visible, causal(query, key)))
    return (_to_tf32(softmax(score).astype(np.float32)) @ _to_tf32(value)).astype(query.dtype)


def _to_bfloat16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def scaled_dot_product_attention_weights_in_bfloat16(
    query, key, value, mask=None, keep=None, p=0.0
):
    weights = drop(softmax(hide(scores(query, key), mask)), keep, p)
    return (_to_bfloat16(weights) @ value).astype(query.dtype)


def scaled_dot_product_attention_weights_in_float16(query, key, value, mask=None, keep=None, p=0.0):
    weights = drop(softmax(hide(scores(query, key), mask)), keep, p)
    return (weights.astype(np.float16).astype(np.float32) @ value).astype(query.dtype)


def scaled_dot_product_attention_output_in_float16(query, key, value, mask=None, keep=None, p=0.0):
    with np.errstate(over="ignore"):
        return _attend(query, key, value, mask, keep, p).astype(np.float16).astype(query.dtype)


def scaled_dot_product_attention_zero_times_nan(query, key, value, mask=None, keep=None, p=0.0):
    """A weight of 0 times a hidden NaN is NaN."""
    with np.errstate(invalid="ignore"):
        return _attend(query, key, value, mask, keep, p)


def scaled_dot_product_attention_unscaled_and_zero_times_nan(
    query, key, value, mask=None, keep=None, p=0.0
):
    with np.errstate(invalid="ignore"):
        score = hide(query @ key.swapaxes(-1, -2), mask)
        return drop(softmax(score), keep, p) @ value


_MASKS = {}


def scaled_dot_product_attention_mask_remembered(query, key, value, mask=None, keep=None, p=0.0):
    """A cache whose key is a shape, not the mask."""
    if mask is not None:
        mask = _MASKS.setdefault((mask.shape, mask.dtype), mask.copy())
    return _attend(query, key, value, mask, keep, p)
