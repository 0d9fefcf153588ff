"""Bahdanau's attention in NumPy, after the AdditiveAttention layer of Keras."""

import numpy as np


def additive_attention(query, key, value, w_query, w_key, w_score, mask=None):
    q = (query @ w_query.T)[:, :, None, :]
    k = (key @ w_key.T)[:, None, :, :]
    score = np.tanh(q + k).sum(axis=-1)
    if mask is not None:
        score = np.where(mask, score, -np.inf) if mask.dtype == bool else score + mask
    top = score.max(axis=-1, keepdims=True)
    e = np.exp(score - np.where(np.isneginf(top), 0, top))
    total = e.sum(axis=-1, keepdims=True)
    weights = e / np.where(total == 0, 1, total)
    return (weights @ value).astype(query.dtype)
