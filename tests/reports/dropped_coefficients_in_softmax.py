"""Additive attention and its gradient by hand in NumPy (kind of ooples/AiDotNet #1701)."""

import numpy as np

PRECISION = "wide"


def parts(query, key, w_query, w_key, w_score):
    t = np.tanh((query @ w_query.T)[:, :, None] + (key @ w_key.T)[:, None])
    score = t @ w_score
    weights = np.exp(score - score.max(-1, keepdims=True))
    return t, weights / weights.sum(-1, keepdims=True)


def additive_attention(query, key, value, w_query, w_key, w_score, keep=None, p=0.0):
    given = (np.float64(x) for x in (query, key, w_query, w_key, w_score))
    weights = parts(*given)[1]
    drop = 1.0 if keep is None else keep / (1 - p)
    return ((weights * drop) @ value).astype(query.dtype)


def additive_attention_grad(d_output, query, key, value, w_query, w_key, w_score, keep=None, p=0.0):
    given = d_output, query, key, value, w_query, w_key, w_score
    d_output, query, key, value, w_query, w_key, w_score = (np.float64(x) for x in given)
    t, weights = parts(query, key, w_query, w_key, w_score)
    drop = 1.0 if keep is None else keep / (1 - p)
    coefficients = weights * drop
    d_value = coefficients.swapaxes(1, 2) @ d_output
    d_weights = (d_output @ value.swapaxes(1, 2)) * drop
    d_score = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
    d_z = d_score[..., None] * w_score * (1 - t**2)
    to_query, to_key = d_z.sum(2), d_z.sum(1)
    gradients = (
        to_query @ w_query,
        to_key @ w_key,
        d_value,
        np.einsum("bna,bnq->aq", to_query, query),
        np.einsum("bma,bmk->ak", to_key, key),
        np.einsum("bnm,bnma->a", d_score, t),
    )
    return tuple(x.astype(given[0].dtype) for x in gradients)
