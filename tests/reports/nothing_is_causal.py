"""Transformer-XL's attention in NumPy (kind of paiml/entrenar #310)."""

import numpy as np

PRECISION = "wide"


def rel_shift(x):
    *lead, n, m = x.shape
    x = np.concatenate([np.zeros((*lead, n, 1)), x], -1).reshape(*lead, m + 1, n)
    return x[..., 1:, :].reshape(*lead, n, m)


def transformer_xl_attention(query, key, value, position, u, v, visible=None):
    dtype = query.dtype
    query, key, value, position, u, v = (np.float64(x) for x in (query, key, value, position, u, v))
    content = (query + u[:, None]) @ key.swapaxes(-2, -1)
    place = rel_shift((query + v[:, None]) @ position.swapaxes(-2, -1))
    scores = (content + place) / np.sqrt(query.shape[-1])
    n, m = scores.shape[-2:]
    seen = np.tri(n, m, m - n, dtype=bool)
    seen = seen if visible is None else seen & visible
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    return (e / np.where(total == 0, 1, total) @ value).astype(dtype)
