"""
A small correct implementation of every operation, in stages: each stage is a keyword, so that one
of them can be replaced.

Scores, what a pair sees, weights, dropout, values. All in float64; a hidden key is absent, a row
that sees no key gives 0. Faults replace a stage here; conventions, fits and systematic errors
replace a field of :class:`attnverify.reference.staged_attention.StagedAttention`, which is
evaluated by these functions.
"""

from math import sqrt
from typing import Any

import numpy as np
from numpy import ndarray

HIDDEN = -np.inf


def inverse_root(D: int) -> float:
    return 1 / sqrt(D)


def products(query: ndarray, key: ndarray) -> ndarray:
    return query @ key.mT


def see(score: ndarray, mask: ndarray | None) -> tuple[ndarray, ndarray]:
    """Add a float mask to the score, and find which pairs see each other."""
    visible = score != HIDDEN
    if mask is None:
        return score, visible
    if mask.dtype == bool:
        return score, visible & mask
    return score + mask, visible & (mask != HIDDEN)


def exponentials(score: ndarray, visible: ndarray) -> ndarray:
    """e^(s - max) of the visible, 0 elsewhere."""
    score = np.where(visible, score, HIDDEN)
    top = score.max(axis=-1, keepdims=True)
    return np.where(visible, np.exp(score - np.where(top == HIDDEN, 0, top)), 0)


def over_sum(e: ndarray) -> ndarray:
    """The share of each number in the sum of its row; 0 where the sum is."""
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def weigh(score: ndarray, visible: ndarray) -> ndarray:
    """Softmax over the keys that a row sees; 0 in a row that sees none."""
    return np.where(visible, over_sum(exponentials(score, visible)), 0)


def drop(weights: ndarray, keep: ndarray | None, p: float) -> ndarray:
    scaled = weights / (1 - p)
    return scaled if keep is None else np.where(keep, scaled, 0)


def mix(weights: ndarray, visible: ndarray, value: ndarray) -> ndarray:
    """Compute the sum of weights times values over the visible pairs: what is hidden may be NaN."""
    if np.isfinite(value).all():
        return weights @ value
    return np.where(visible[..., None], weights[..., None] * value[..., None, :, :], 0).sum(-2)


def attend(
    score: ndarray,
    visible: ndarray,
    value: ndarray,
    keep: Any = None,
    p: float = 0.0,
    weigh: Any = weigh,
    drop: Any = drop,
    mix: Any = mix,
) -> ndarray:
    """Compute what every attention ends in."""
    return mix(drop(weigh(score, visible), keep, p), visible, value)


# single operations


def softmax(score: ndarray, mask: Any = None, see: Any = see, weigh: Any = weigh) -> ndarray:
    return weigh(*see(score, mask))


def dropout(weights: ndarray, keep: Any, p: float, drop: Any = drop) -> ndarray:
    return np.array(drop(weights, keep, p))


def causal_mask(N: int, M: int, offset: Any = None, ahead: int = 0) -> ndarray:
    """j <= offset + i, the ends aligned where no other offset is given."""
    offset = M - N if offset is None else offset
    return np.arange(M) <= np.arange(N)[:, None] + offset + ahead


def four_axes(attn_mask: ndarray, H: int) -> ndarray:
    return (
        attn_mask[None, None]
        if attn_mask.ndim == 2
        else attn_mask.reshape(-1, H, *attn_mask.shape[1:])
    )


def merge_masks(
    attn_mask: Any,
    key_padding_mask: Any,
    num_heads: int,
    four_axes: Any = four_axes,
    hidden: float = HIDDEN,
) -> ndarray:
    merged = np.zeros((1, 1, 1, 1))
    if attn_mask is not None:
        merged = four_axes(attn_mask, num_heads)
        merged = np.where(merged, hidden, 0.0) if attn_mask.dtype == bool else merged.copy()
    return (
        merged
        if key_padding_mask is None
        else np.where(key_padding_mask[:, None, None, :], hidden, merged)
    )


def shift(x: ndarray, front: bool, fill: float = 0.0) -> ndarray:
    """
    One more column, read as rows one shorter: :func:`spec.shifts.rel_shift` (in front) and
    ``shift_right`` (behind).
    """
    *lead, N, M = x.shape
    column = np.full((*lead, N, 1), fill)
    padded = np.concatenate([column, x] if front else [x, column], axis=-1)
    line = padded.reshape(*lead, N * (M + 1))
    return (line[..., N:] if front else line[..., : N * M]).reshape(x.shape)


def rel_shift(x: ndarray) -> ndarray:
    return shift(x, front=True)


def shift_right(x: ndarray) -> ndarray:
    return shift(x, front=False)


def get_slopes(n_heads: int, base: float = 8.0) -> ndarray:
    n = 2 ** (int(n_heads).bit_length() - 1)
    h = np.arange(n_heads)
    return 2.0 ** (-base / n * np.where(h < n, h + 1, h - n + 0.5))


def get_alibi_biases(n_heads: int, visible: ndarray, slopes: Any = get_slopes) -> ndarray:
    return slopes(n_heads)[:, None, None] * np.cumsum(visible, axis=-1)


def sinusoidal_positions(
    M: int, F: int, distance: Any = None, base: float = 1e4, width: Any = None
) -> ndarray:
    distance = np.arange(M)[::-1] if distance is None else distance
    angle = np.multiply.outer(distance, base ** (-2 * np.arange(F // 2) / (width or F)))
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


def init_mems(n_layers: int, mem_len: int, batch: int, width: int) -> Any:
    return [np.zeros((batch, mem_len, width)) for _ in range(n_layers)] if mem_len else None


def window(mem: ndarray, hid: ndarray, mem_len: int) -> ndarray:
    both = np.concatenate([mem, hid], axis=1)
    return both[:, max(0, both.shape[1] - mem_len) :].copy()


def update_mems(hids: Any, mems: Any, mem_len: int, window: Any = window) -> Any:
    return (
        None
        if mems is None
        else [window(mem, hid, mem_len) for mem, hid in zip(mems, hids, strict=True)]
    )


# scores


def scaled_dot_product_score(
    query: ndarray, key: ndarray, products: Any = products, scale: Any = inverse_root
) -> ndarray:
    return products(query, key) * scale(query.shape[-1])


def additive_score(
    query: ndarray,
    key: ndarray,
    w_query: Any,
    w_key: Any,
    w_score: Any,
    bend: Any = np.tanh,
    last: Any = np.matmul,
) -> ndarray:
    q, k = query @ w_query.T, key @ w_key.T
    return last(bend(q[..., :, None, :] + k[..., None, :, :]), w_score)


def transformer_xl_score(
    query: ndarray,
    key: ndarray,
    position: Any,
    u: Any,
    v: Any,
    shift: Any = rel_shift,
    scale: Any = inverse_root,
    products: Any = products,
) -> ndarray:
    content = products(query + u[:, None], key)
    return (content + shift(products(query + v[:, None], position))) * scale(query.shape[-1])


def table_rows(N: int, M: int, P: int, align: str) -> ndarray:
    """Find the row of the tables [N M] that each pair reads."""
    return P + np.arange(M) - np.arange(N)[:, None] - (M - N if align == "end" else 0)


def read_rows(far: ndarray, t: ndarray) -> ndarray:
    """Take the scores of the table's rows [B H N 2P] read at the rows t [N M]."""
    return np.take_along_axis(far, np.broadcast_to(t, (*far.shape[:2], *t.shape)), axis=-1)


def learned_relative_score(
    query: ndarray,
    key: ndarray,
    key_pos_embeddings: Any,
    key_pos_bias: Any,
    query_pos_bias: Any,
    align: str,
    table_rows: Any = table_rows,
    read: Any = read_rows,
    scale: Any = inverse_root,
    products: Any = products,
) -> ndarray:
    (N, D), M = query.shape[-2:], key.shape[-2]
    t = table_rows(N, M, len(key_pos_bias) // 2, align)
    content = products(query + query_pos_bias[:, None], key)
    far = np.einsum("bhnd,thd->bhnt", query, key_pos_embeddings) + key_pos_bias.T[:, None]
    # NaN in a row of the table that hidden pairs alone read stays with those pairs
    return (content + read(far, t)) * scale(D)


# attentions


def scaled_dot_product_attention(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    mask: Any = None,
    keep: Any = None,
    p: float = 0.0,
    see: Any = see,
    scale: Any = inverse_root,
    products: Any = products,
    **stages: Any,
) -> ndarray:
    score, visible = see(scaled_dot_product_score(query, key, products, scale), mask)
    return attend(score, visible, value, keep, p, **stages)


def additive_attention(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    w_query: Any,
    w_key: Any,
    w_score: Any,
    mask: Any = None,
    keep: Any = None,
    p: float = 0.0,
    see: Any = see,
    score: Any = additive_score,
    **stages: Any,
) -> ndarray:
    s, visible = see(score(query, key, w_query, w_key, w_score), mask)
    return attend(s, visible, value, keep, p, **stages)


def behind(score: ndarray, visible: Any, causal: Any = causal_mask) -> ndarray:
    """Find the pairs that a causal attention sees."""
    seen = causal(*score.shape[-2:]) & (True if visible is None else visible)
    return np.broadcast_to(seen, score.shape)


def distances(N: int, M: int) -> ndarray:
    """j - (M - N + i): 0 for the key at the query's own place, negative before it."""
    return np.arange(M) - np.arange(N)[:, None] - (M - N)


def alibi_score(
    query: ndarray,
    key: ndarray,
    slopes: Any = get_slopes,
    distances: Any = distances,
    scale: Any = inverse_root,
    products: Any = products,
) -> ndarray:
    (H, N), M = query.shape[1:3], key.shape[2]
    return scaled_dot_product_score(query, key, products, scale) + slopes(H)[
        :, None, None
    ] * distances(N, M)


def alibi_attention(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    visible: Any = None,
    score: Any = alibi_score,
    causal: Any = causal_mask,
    **stages: Any,
) -> ndarray:
    s = score(query, key)
    return attend(s, behind(s, visible, causal), value, **stages)


def transformer_xl_attention(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    position: Any,
    u: Any,
    v: Any,
    visible: Any = None,
    score: Any = transformer_xl_score,
    causal: Any = causal_mask,
    **stages: Any,
) -> ndarray:
    s = score(query, key, position, u, v)
    return attend(s, behind(s, visible, causal), value, **stages)


def learned_relative_attention(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    key_pos_embeddings: Any,
    key_pos_bias: Any,
    query_pos_bias: Any,
    align: str,
    visible: Any = None,
    score: Any = learned_relative_score,
    **stages: Any,
) -> ndarray:
    s = score(query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align)
    return attend(
        *see(s, None if visible is None else np.broadcast_to(visible, s.shape)), value, **stages
    )
