"""Slopes, distances and frontiers of ALiBi; shifts and tables of relative positions."""

import numpy as np

from ._pieces import alibi_slopes, both, causal, distances, hide, scores, softmax


def _attend(query, key, value, visible, slopes, distance):
    score = (scores(query, key) + slopes * distance).astype(query.dtype)
    return softmax(hide(score, visible)) @ value


def alibi_attention_plain_series(query, key, value, visible=None):
    """2^(-8h/H) for every number of heads."""
    H = query.shape[1]
    slopes = 2.0 ** (-8 * np.arange(1, H + 1) / H)[:, None, None]
    seen = both(visible, causal(query, key))
    return _attend(query, key, value, seen, slopes, distances(query, key))


def alibi_attention_slopes_from_zero(query, key, value, visible=None):
    """The first head's slope is 1: h counts from 0."""
    H = query.shape[1]
    slopes = alibi_slopes(H) * 2 ** (8 / 2 ** (H.bit_length() - 1))
    seen = both(visible, causal(query, key))
    return _attend(query, key, value, seen, slopes, distances(query, key))


def alibi_attention_bias_with_wrong_sign(query, key, value, visible=None):
    seen = both(visible, causal(query, key))
    slopes = alibi_slopes(query.shape[1])
    return _attend(query, key, value, seen, slopes, -distances(query, key))


def alibi_attention_without_bias(query, key, value, visible=None):
    return softmax(hide(scores(query, key), both(visible, causal(query, key)))) @ value


def alibi_attention_bias_before_the_scale(query, key, value, visible=None):
    biases = alibi_slopes(query.shape[1]) * distances(query, key)
    score = query @ key.swapaxes(-1, -2) + biases
    score = (score / np.sqrt(query.shape[-1])).astype(query.dtype)
    return softmax(hide(score, both(visible, causal(query, key)))) @ value


def alibi_attention_slopes_reversed(query, key, value, visible=None):
    seen = both(visible, causal(query, key))
    slopes = alibi_slopes(query.shape[1])[::-1]
    return _attend(query, key, value, seen, slopes, distances(query, key))


def alibi_attention_one_slope_for_all(query, key, value, visible=None):
    seen = both(visible, causal(query, key))
    slopes = alibi_slopes(query.shape[1])[:1]
    return _attend(query, key, value, seen, slopes, distances(query, key))


def alibi_attention_bias_squared(query, key, value, visible=None):
    """The penalty grows with the square of the distance."""
    distance = distances(query, key)
    seen, slopes = both(visible, causal(query, key)), alibi_slopes(query.shape[1])
    return _attend(query, key, value, seen, slopes, -(distance**2))


def _with_frontier(query, key, value, visible, frontier):
    seen, slopes = both(visible, frontier), alibi_slopes(query.shape[1])
    return _attend(query, key, value, seen, slopes, distances(query, key))


def alibi_attention_top_left(query, key, value, visible=None):
    frontier = np.tri(query.shape[-2], key.shape[-2], dtype=bool)
    return _with_frontier(query, key, value, visible, frontier)


def alibi_attention_own_key_hidden(query, key, value, visible=None):
    return _with_frontier(query, key, value, visible, distances(query, key) < 0)


def alibi_attention_one_key_beyond(query, key, value, visible=None):
    return _with_frontier(query, key, value, visible, distances(query, key) <= 1)


def alibi_attention_mask_instead_of_frontier(query, key, value, visible=None):
    """A mask that is given takes the causal mask's place."""
    seen = causal(query, key) if visible is None else visible
    return _with_frontier(query, key, value, seen, np.ones_like(causal(query, key)))


def alibi_attention_float32_in_float64(query, key, value, visible=None):
    q, k, v = (x.astype(np.float32) for x in (query, key, value))
    return _with_frontier(q, k, v, visible, causal(query, key)).astype(query.dtype)


def get_slopes_closest_power(n_heads):
    """The power of two that is nearest, not the one below."""
    n = 2 ** round(np.log2(n_heads))
    slopes = [2 ** (-8 * (h + 1) / n) for h in range(n)]
    slopes += [2 ** (-4 * (2 * h + 1) / n) for h in range(n_heads - n)]
    return np.array(slopes[:n_heads], np.float32)


def get_slopes_from_zero(n_heads):
    n = 2 ** (int(n_heads).bit_length() - 1)
    slopes = [2 ** (-8 * h / n) for h in range(n)]
    slopes += [2 ** (-4 * (2 * h + 1) / n) for h in range(n_heads - n)]
    return np.array(slopes, np.float32)


def _xl(query, key, value, content, distance, visible):
    score = ((content + distance) / np.sqrt(query.shape[-1])).astype(query.dtype)
    return softmax(hide(score, both(visible, causal(query, key)))) @ value


def _shifted(x):
    *front, N, M = x.shape
    padded = np.concatenate([np.zeros((*front, N, 1), x.dtype), x], axis=-1)
    return padded.reshape(*front, N * (M + 1))[..., N:].reshape(x.shape)


def _products(query, key, position, u, v):
    return (query + u[:, None]) @ key.swapaxes(-1, -2), (query + v[:, None]) @ position.swapaxes(
        -1, -2
    )


def transformer_xl_attention_not_shifted(query, key, value, position, u, v, visible=None):
    content, distance = _products(query, key, position, u, v)
    return _xl(query, key, value, content, distance, visible)


def transformer_xl_attention_u_for_v(query, key, value, position, u, v, visible=None):
    content, distance = _products(query, key, position, v, u)
    return _xl(query, key, value, content, _shifted(distance), visible)


def transformer_xl_attention_positions_not_scaled(query, key, value, position, u, v, visible=None):
    content, distance = _products(query, key, position, u, v)
    distance = _shifted(distance) * np.sqrt(query.shape[-1])
    return _xl(query, key, value, content, distance, visible)


def transformer_xl_attention_positions_reversed(query, key, value, position, u, v, visible=None):
    """The row of distance 0 first."""
    content, distance = _products(query, key, position[:, ::-1], u, v)
    return _xl(query, key, value, content, _shifted(distance), visible)


def _learned(query, key, tables, visible, row, value):
    embeddings, bias, query_bias = tables
    content = (query + query_bias[:, None]) @ key.swapaxes(-1, -2)
    row = np.clip(row, 0, len(bias) - 1)
    placed = np.einsum("bhnd,nmhd->bhnm", query, embeddings[row])
    score = content + placed + np.moveaxis(bias[row], -1, 0)
    score = (score / np.sqrt(query.shape[-1])).astype(query.dtype)
    return softmax(hide(score, visible)) @ value


def _rows(query, key, bias, align):
    N, M = query.shape[-2], key.shape[-2]
    offset = M - N if align == "end" else 0
    return len(bias) // 2 + np.arange(M) - np.arange(N)[:, None] - offset


def learned_relative_attention_table_mirrored(
    query, key, value, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible=None
):
    tables = key_pos_embeddings, key_pos_bias, query_pos_bias
    row = 2 * (len(key_pos_bias) // 2) - _rows(query, key, key_pos_bias, align)
    return _learned(query, key, tables, visible, row, value)


def learned_relative_attention_one_row_on(
    query, key, value, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible=None
):
    tables = key_pos_embeddings, key_pos_bias, query_pos_bias
    row = _rows(query, key, key_pos_bias, align) + 1
    return _learned(query, key, tables, visible, row, value)


def learned_relative_attention_always_at_the_start(
    query, key, value, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible=None
):
    tables = key_pos_embeddings, key_pos_bias, query_pos_bias
    return _learned(query, key, tables, visible, _rows(query, key, key_pos_bias, "start"), value)


def learned_relative_attention_without_query_bias(
    query, key, value, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible=None
):
    tables = key_pos_embeddings, key_pos_bias, 0 * query_pos_bias
    return _learned(query, key, tables, visible, _rows(query, key, key_pos_bias, align), value)


def update_mems_keeps_all(hids, mems, mem_len):
    """``x[-0:]`` is everything."""
    if mems is None:
        return None
    return [np.concatenate([m, h], axis=1)[:, -mem_len:] for m, h in zip(mems, hids, strict=True)]


def update_mems_segment_first(hids, mems, mem_len):
    if mems is None:
        return None
    joined = [np.concatenate([h, m], axis=1) for m, h in zip(mems, hids, strict=True)]
    return [x[:, max(x.shape[1] - mem_len, 0) :].copy() for x in joined]


def sinusoidal_positions_alternating(M, F):
    """Sine and cosine side by side."""
    angle = np.arange(M - 1, -1, -1)[:, None] * 10000.0 ** (-2 * np.arange(F // 2) / F)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(M, F).astype(np.float32)


def get_alibi_biases_from_zero(n_heads, visible):
    """The first visible key has the bias 0."""
    return alibi_slopes(n_heads) * (np.cumsum(visible, axis=-1) - 1)


def get_alibi_biases_to_the_last_key(n_heads, visible):
    """Minus the distance to the row's last visible key."""
    seen = np.cumsum(visible, axis=-1)
    return alibi_slopes(n_heads) * (seen - seen[..., -1:])
