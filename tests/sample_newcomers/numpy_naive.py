import numpy as np


def scaled_dot_product_attention(query, key, value, mask=None):
    score = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    if mask is not None:
        score = np.where(mask, score, -np.inf) if mask.dtype == bool else score + mask
    weights = np.exp(score)
    return (weights / weights.sum(-1, keepdims=True)) @ value
