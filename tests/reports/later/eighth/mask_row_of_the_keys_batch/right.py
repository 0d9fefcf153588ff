"""Attention that walks the mask in its own memory (after tt-metal #39910)."""

import numpy as np

FEATURES = {"dropout": False}


def read_mask(buffer, offset, size):
    """A span of the mask's buffer; what lies behind its end reads as 0."""
    span = np.zeros(size, buffer.dtype)
    found = buffer[offset : offset + size]
    span[: len(found)] = found
    return span


def scaled_dot_product_attention(query, key, value, mask=None):
    batch, heads, n, d = query.shape
    m, e = value.shape[2:]
    out = np.zeros((batch, heads, n, e), query.dtype)
    if mask is not None:
        if mask.dtype == bool:
            mask = np.where(mask, 0, -np.inf).astype(query.dtype)
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        b_mask = mask.shape[0]
        buffer = np.broadcast_to(mask, (b_mask, heads, n, m)).ravel()
    for cur_batch, h in np.ndindex(batch, heads):
        scores = query[cur_batch, h] @ key[cur_batch, h].T / np.sqrt(query.dtype.type(d))
        if mask is not None:
            mask_batch_offset = (cur_batch % b_mask) * heads * n * m
            span = read_mask(buffer, mask_batch_offset + h * n * m, n * m)
            scores = scores + span.reshape(n, m)
        top = scores.max(-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isneginf(top), 0, top).astype(query.dtype))
        total = weights.sum(-1, keepdims=True)
        out[cur_batch, h] = weights @ value[cur_batch, h] / np.where(total == 0, 1, total)
    return out
