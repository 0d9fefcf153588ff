"""
Operations of the catalogue as a user would write them: whole arrays, no error analysis anywhere.
What is derived from these lines is compared with the bounds that are written by hand.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

Mask = ndarray | None


def softmax(score: ndarray, mask: Mask = None) -> ndarray:
    if mask is not None:
        score = np.where(mask, score, -np.inf) if mask.dtype == bool else score + mask
    top = np.max(score, axis=-1, keepdims=True)
    e = np.exp(score - np.where(np.isfinite(top), top, 0.0))
    total = np.sum(e, axis=-1, keepdims=True)
    return e / np.where(total == 0, 1.0, total)


def attend(
    score: ndarray, value: ndarray, mask: Mask = None, keep: Mask = None, p: float = 0.0
) -> ndarray:
    weights = softmax(score, mask)
    if keep is not None:
        weights = np.where(keep, weights / (1 - p) if p else weights, 0.0)
    return weights @ value


def scaled_dot_product_score(query: ndarray, key: ndarray) -> ndarray:
    return query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])


def scaled_dot_product_attention(
    query: ndarray, key: ndarray, value: ndarray, mask: Mask = None, keep: Mask = None, p: float = 0
) -> ndarray:
    return attend(scaled_dot_product_score(query, key), value, mask, keep, p)


def additive_score(
    query: ndarray, key: ndarray, w_query: ndarray, w_key: ndarray, w_score: ndarray
) -> ndarray:
    q, k = query @ w_query.T, key @ w_key.T
    return np.tanh(q[..., :, None, :] + k[..., None, :, :]) @ w_score


def additive_attention(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    w_query: ndarray,
    w_key: ndarray,
    w_score: ndarray,
    mask: Mask = None,
    keep: Mask = None,
    p: float = 0.0,
) -> ndarray:
    return attend(additive_score(query, key, w_query, w_key, w_score), value, mask, keep, p)


def causal(N: int, M: int, visible: Mask = None) -> ndarray:
    seen = np.arange(M) <= np.arange(N)[:, None] + (M - N)
    return seen if visible is None else seen & visible


def slopes(heads: int) -> ndarray:
    n = 2 ** (heads.bit_length() - 1)
    first = [2 ** (-8 * (h + 1) / n) for h in range(n)]
    return np.array(first + [2 ** (-4 * (2 * h + 1) / n) for h in range(heads - n)])


def alibi_attention(query: ndarray, key: ndarray, value: ndarray, visible: Mask = None) -> ndarray:
    H, N, M = query.shape[1], query.shape[2], key.shape[2]
    distance = np.arange(M)[None, :] - (M - N + np.arange(N)[:, None])
    score = scaled_dot_product_score(query, key) + slopes(H)[:, None, None] * distance
    return attend(score, value, causal(N, M, visible))


def rel_shift(x: ndarray) -> ndarray:
    *lead, N, M = x.shape
    x = np.pad(x, [(0, 0)] * (len(lead) + 1) + [(1, 0)])
    return x.reshape(*lead, N * (M + 1))[..., N:].reshape(*lead, N, M)


def transformer_xl_score(
    query: ndarray, key: ndarray, position: ndarray, u: ndarray, v: ndarray
) -> ndarray:
    content = (query + u[:, None]) @ np.swapaxes(key, -1, -2)
    distance = rel_shift((query + v[:, None]) @ np.swapaxes(position, -1, -2))
    return (content + distance) / np.sqrt(query.shape[-1])


def transformer_xl_attention(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    position: ndarray,
    u: ndarray,
    v: ndarray,
    visible: Mask = None,
    keep: Mask = None,
    p: float = 0.0,
) -> ndarray:
    score = transformer_xl_score(query, key, position, u, v)
    return attend(score, value, causal(*score.shape[-2:], visible), keep, p)


def learned_relative_score(
    query: ndarray,
    key: ndarray,
    key_pos_embeddings: ndarray,
    key_pos_bias: ndarray,
    query_pos_bias: ndarray,
    align: str,
) -> ndarray:
    N, M = query.shape[2], key.shape[2]
    t = np.arange(M) - np.arange(N)[:, None] - (M - N if align == "end" else 0)
    t = t + len(key_pos_embeddings) // 2
    content = (query + query_pos_bias[:, None]) @ np.swapaxes(key, -1, -2)
    position = np.einsum("bhnd,nmhd->bhnm", query, key_pos_embeddings[t])
    return (content + position + np.moveaxis(key_pos_bias[t], -1, 0)) / np.sqrt(query.shape[-1])


def learned_relative_attention(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    key_pos_embeddings: ndarray,
    key_pos_bias: ndarray,
    query_pos_bias: ndarray,
    align: str,
    visible: Mask = None,
) -> ndarray:
    learned = (key_pos_embeddings, key_pos_bias, query_pos_bias)
    return attend(learned_relative_score(query, key, *learned, align), value, visible)


def self_attention(
    x: ndarray, parameters: Any, mask: Mask = None, keep: Mask = None, p: float = 0.0
) -> ndarray:
    q, k, v = (x @ parameters[name].T for name in ("w_query", "w_key", "w_value"))
    return attend(scaled_dot_product_score(q, k), v, mask, keep, p)


WRITTEN: dict[Callable[..., Any], str] = {
    softmax: "score",
    scaled_dot_product_score: "query key",
    scaled_dot_product_attention: "query key value",
    additive_score: "query key w_query w_key w_score",
    additive_attention: "query key value w_query w_key w_score",
    alibi_attention: "query key value",
    transformer_xl_score: "query key position u v",
    transformer_xl_attention: "query key value position u v",
    learned_relative_score: "query key key_pos_embeddings key_pos_bias query_pos_bias",
    learned_relative_attention: "query key value key_pos_embeddings key_pos_bias query_pos_bias",
    self_attention: "x parameters",
}
"""Each operation, and the arguments that its gradient is taken by."""
