"""
Two faults on several rungs: rows that see no key are NaN from the softmax upwards, and the slopes
are a plain series.
"""

import numpy as np

from attnverify import numpy_ref as right

ARRAYS = "numpy"
PRECISION = "wide"


def softmax(score, mask=None):
    weights = right.softmax(score, mask)
    return np.where(weights.any(axis=-1, keepdims=True), weights, weights.dtype.type(np.nan))


def scaled_dot_product_attention(query, key, value, mask=None, keep=None, p=0.0):
    output = right.scaled_dot_product_attention(query, key, value, mask, keep, p)
    seen = True if mask is None else mask if mask.dtype == bool else mask > -np.inf
    pairs = np.broadcast_to(seen, (*query.shape[:3], key.shape[2]))
    return np.where(pairs.any(axis=-1)[..., None], output, output.dtype.type(np.nan))


def get_slopes(n_heads, dtype="float64"):
    right.get_slopes(n_heads)
    return (2.0 ** (-8 * np.arange(1, n_heads + 1) / n_heads)).astype(dtype)


def get_alibi_biases(n_heads, visible, dtype="float64"):
    right_biases = right.get_alibi_biases(n_heads, visible, dtype="float64")
    ratio = get_slopes(n_heads) / right.get_slopes(n_heads, dtype="float64")
    return (right_biases * ratio[:, None, None]).astype(dtype)
