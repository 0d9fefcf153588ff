"""
Controls: right implementations that compute in unusual ways. Whoever judges must not accuse them.
"""

import math
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.arithmetic.rounding import rounded_weigh
from attnverify.faults.arithmetic.softmax import online, split
from attnverify.reference import attention, layers
from attnverify.reference.attention import HIDDEN, inverse_root
from tests.attnverify.faults.controls.registry import add_controls, control

ALL_FLOAT32 = {"preset": "wide"} | dict.fromkeys(
    ("acc", "score", "softmax", "prob", "bias", "joined", "stage", "prescale"), "float32"
)


@control("softmax", "split keys merged by their log-sum-exps")
def learned_relative_attention_split(value: ndarray, visible: Any = None, **given: Any) -> Any:
    score = attention.learned_relative_score(**given)
    sees = np.ones(score.shape, bool) if visible is None else np.broadcast_to(visible, score.shape)
    return split(score, sees, value, parts=3)


def power_of_two(score: ndarray, visible: ndarray) -> ndarray:
    top = np.where(visible, score, HIDDEN).max(axis=-1, keepdims=True)
    below = score - np.where(top == HIDDEN, 0, top)
    weight = np.where(visible, np.exp2(below * math.log2(math.e)), 0)
    return attention.over_sum(weight)


def sorted_keys(score: ndarray, visible: ndarray) -> ndarray:
    order = np.argsort(np.where(visible, score, HIDDEN), axis=-1)
    weights = np.zeros_like(score)
    ordered = attention.weigh(
        np.take_along_axis(score, order, -1), np.take_along_axis(visible, order, -1)
    )
    np.put_along_axis(weights, order, ordered, -1)
    return weights


def added_infinity(score: ndarray, visible: ndarray) -> ndarray:
    return attention.weigh(np.where(visible, score, 0) + np.where(visible, 0, HIDDEN), visible)


def large_sentinel(score: ndarray, visible: ndarray) -> ndarray:
    weights = attention.weigh(np.where(visible, score, -1e30), np.ones_like(visible))
    return np.where(visible, weights, 0)


@control("alibi", "a constant in every row's bias")
def alibi_attention_absolute_positions(**given: Any) -> Any:
    distances = lambda N, M: np.broadcast_to(np.arange(M), (N, M))
    return attention.alibi_attention(
        **given, score=lambda q, k: attention.alibi_score(q, k, distances=distances)
    )


@control("state", "biases cut from the end of a longer table of an earlier call",
         stateful=True)  # fmt: skip
def alibi_attention_cut_biases(memory: Any, **given: Any) -> Any:
    def distances(N: int, M: int) -> ndarray:
        known = memory.get("distances")
        if known is None or known.shape[0] < N or known.shape[1] < M:
            known = memory["distances"] = attention.distances(N, M)
        return known[known.shape[0] - N :, known.shape[1] - M :]

    return attention.alibi_attention(
        **given, score=lambda q, k: attention.alibi_score(q, k, distances=distances)
    )


@control("scale", "queries and keys scaled by the fourth root")
def scaled_dot_product_score_fourth_roots(query: ndarray, key: ndarray) -> Any:
    root = inverse_root(query.shape[-1]) ** 0.5
    return attention.scaled_dot_product_score(query * root, key * root, scale=lambda D: 1.0)


@control("numerics", "float32 throughout, as declared", precision=ALL_FLOAT32)
def scaled_dot_product_attention_float32(
    query: ndarray, key: ndarray, value: ndarray, **given: Any
) -> Any:
    q, k, v = (x.astype(np.float32) for x in (query, key, value))
    return attention.scaled_dot_product_attention(q, k, v, **given).astype(np.float64)


@control("shifts", "a shift by gathering")
def rel_shift_gathered(x: ndarray) -> Any:
    N, M = x.shape[-2:]
    padded = np.concatenate([np.zeros((*x.shape[:-1], 1)), x], axis=-1)
    i, c = np.divmod(np.arange(N, N + N * M).reshape(N, M), M + 1)
    return padded[..., i, c]


@control("shifts", "a shift by a running place")
def shift_right_row_by_row(x: ndarray) -> Any:
    N, M = x.shape[-2:]
    line = np.zeros((*x.shape[:-2], N * (M + 1)))
    for i in range(N):
        line[..., i * (M + 1) : i * (M + 1) + M] = x[..., i, :]
    return line[..., : N * M].reshape(x.shape)


@control("relative", "positions gathered for every pair")
def transformer_xl_attention_gathered(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    position: ndarray,
    u: ndarray,
    v: ndarray,
    visible: Any,
) -> Any:
    (N, D), M = query.shape[2:], key.shape[2]
    row = np.clip(np.arange(M) + N - 1 - np.arange(N)[:, None], 0, M - 1)
    far = np.take_along_axis(
        (query + v[:, None]) @ position.mT, np.broadcast_to(row, (*query.shape[:2], N, M)), axis=-1
    )
    score = ((query + u[:, None]) @ key.mT + far) * inverse_root(D)
    return attention.attend(score, attention.behind(score, visible), value)


@control("relative", "a table row for every pair")
def learned_relative_score_whole_table(
    query: ndarray,
    key: ndarray,
    key_pos_embeddings: ndarray,
    key_pos_bias: ndarray,
    query_pos_bias: ndarray,
    align: str,
) -> Any:
    t = attention.table_rows(query.shape[2], key.shape[2], len(key_pos_bias) // 2, align)
    far = np.einsum("bhnd,nmhd->bhnm", query, key_pos_embeddings[t]) + key_pos_bias[t].transpose(
        2, 0, 1
    )
    near = (
        np.einsum("bhmd,bhnd->bhnm", key, query)
        + np.einsum("bhmd,hd->bhm", key, query_pos_bias)[:, :, None]
    )
    return (near + far) * inverse_root(query.shape[-1])


@control("relative", "sines and cosines of complex exponentials")
def sinusoidal_positions_complex(M: int, F: int) -> Any:
    turns = np.exp(
        1j * np.multiply.outer(np.arange(M)[::-1], np.exp(-np.log(1e4) * np.arange(0, F, 2) / F))
    )
    return np.concatenate([turns.imag, turns.real], axis=-1)


@control("additive", "the hidden layer unit by unit")
def additive_score_unit_by_unit(
    query: ndarray, key: ndarray, w_query: ndarray, w_key: ndarray, w_score: ndarray
) -> Any:
    units = zip(w_query, w_key, w_score, strict=True)
    return sum(
        w * np.tanh((query @ q)[..., :, None] + (key @ k)[..., None, :]) for q, k, w in units
    )


@control("layers", "the batch from the last to the first")
def multi_head_self_attention_reversed_batch(
    x: ndarray, attn_mask: Any = None, key_padding_mask: Any = None, keep: Any = None, **given: Any
) -> Any:
    draw = None if keep is None else keep[::-1]
    merged = attention.merge_masks(attn_mask, key_padding_mask, given["num_heads"])[::-1]
    output, weights = layers.multi_head_self_attention(
        x[::-1], **given, keep=draw, merge_masks=lambda *masks: merged
    )
    return output[::-1], weights[::-1]


@control("layers", "the projections of query and key in one matrix")
def self_attention_one_matrix(x: ndarray, parameters: Any, mask: Any = None, **draw: Any) -> Any:
    both = parameters["w_query"].T @ parameters["w_key"]
    score = x @ both @ x.mT * inverse_root(len(parameters["w_key"]))
    return attention.attend(*attention.see(score, mask), x @ parameters["w_value"].T, **draw)


@control("layers", "head by head")
def relative_multi_head_attention_heads_apart(
    query: ndarray, key: ndarray, value: ndarray, parameters: Any, num_heads: int, **given: Any
) -> Any:

    return layers.relative_multi_head_attention(
        query,
        key,
        value,
        parameters,
        num_heads,
        **given,
        weigh=lambda s, v: np.stack(
            [attention.weigh(s[:, h], v[:, h]) for h in range(s.shape[1])], axis=1
        ),
    )


def largest_taken_off(H: int, visible: ndarray) -> ndarray:
    counted = attention.get_alibi_biases(H, visible)
    return counted - counted.max(axis=-1, keepdims=True)


def running_variance(x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
    mean, square = np.zeros(x.shape[:-1]), np.zeros(x.shape[:-1])
    for f in range(x.shape[-1]):
        step = x[..., f] - mean
        mean = mean + step / (f + 1)
        square = square + step * (x[..., f] - mean)
    y = weight * (x - mean[..., None]) / np.sqrt(square[..., None] / x.shape[-1] + eps)
    return y if bias is None else y + bias


def one_pass(x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
    mean = x.mean(axis=-1, keepdims=True)
    y = (
        weight
        * (x - mean)
        / np.sqrt(np.maximum((x * x).mean(axis=-1, keepdims=True) - mean * mean, 0) + eps)
    )
    return y if bias is None else y + bias


@control("memory", "a memory filled position by position")
def update_mems_position_by_position(hids: Any, mems: Any, mem_len: int) -> Any:
    def window(mem: ndarray, hid: ndarray, n: int) -> ndarray:
        rows = [x[:, i] for x in (mem, hid) for i in range(x.shape[1])][-n:] if n else []
        return np.stack(rows, axis=1) if rows else mem[:, :0].copy()

    return attention.update_mems(hids, mems, mem_len, window=window)


@control("masks", "the smaller of two masks")
def merge_masks_smaller(attn_mask: Any, key_padding_mask: Any, num_heads: int) -> Any:
    merged = attention.merge_masks(attn_mask, None, num_heads)
    if key_padding_mask is None:
        return merged
    return np.fmin(merged, np.where(key_padding_mask, HIDDEN, np.nan)[:, None, None])


@control("alibi", "slopes by exp and log")
def get_slopes_exponential(n_heads: int) -> Any:
    n = 2 ** (int(n_heads).bit_length() - 1)
    h = np.arange(n_heads)
    return np.exp(-np.log(2.0) * 8 / n * np.where(h < n, h + 1, h - n + 0.5))


add_controls("blocks", (
    ("scaled_dot_product_attention_blocks_of_seven", "an online softmax in blocks of seven keys",
     {"weigh": lambda s, v: online(s, v, block=7)}),
    ("alibi_attention_from_the_last", "blocks of keys from the last to the first",
     {"weigh": lambda s, v: online(s[..., ::-1], v[..., ::-1])[..., ::-1]}),
))  # fmt: skip


add_controls("dropout", (
    ("scaled_dot_product_attention_factor_on_output", "the factor of dropout on the output",
     lambda p=0.0, **given: attention.scaled_dot_product_attention(p=p, **given, drop=lambda w,
      keep, p: attention.drop(w, keep, 0.0)) / (1 - p)),
    ("dropout_multiplied",
     "a product with the draw: negative zeros where something negative is dropped",
     {"drop": lambda w, keep, p: w * ((1.0 if keep is None else keep) / (1 - p))}),
))  # fmt: skip


add_controls("numerics", (
    ("alibi_attention_declared_weights", "weights in bfloat16, as declared",
     {"weigh": rounded_weigh("bfloat16")}, {"precision": {"preset": "wide", "prob": "bfloat16"}}),
))  # fmt: skip


add_controls("layers", (
    ("multi_head_attention_without_key_bias",
     "no bias on the keys: a constant in every row of scores",
     lambda parameters, **given: layers.multi_head_attention(parameters={name: x for name, x in
      parameters.items() if name != "k_proj.bias"}, **given)),
    ("transformer_xl_layer_without_position_bias",
     "no bias on the positions: a constant in every row of scores",
     lambda parameters, **given: layers.transformer_xl_layer(parameters={name: x for name, x in
      parameters.items() if name != "r_net.bias"}, **given)),
    ("alibi_multi_head_attention_largest_taken_off",
     "biases of which every row's largest is taken off", {"biases": largest_taken_off}),
    ("transformer_xl_layer_running_variance", "a variance by Welford's running update", {"norm":
     running_variance}),
    ("transformer_xl_one_pass", "a variance in one pass, in float64", {"norm": one_pass},
     {"precision": {"float64": {"preset": "wide", "variance": "one_pass"}, "*": "wide"}}),
))  # fmt: skip


add_controls("memory", (
    ("init_mems_one_buffer", "layers side by side in one buffer",
     lambda n_layers, mem_len, batch, width: list(np.zeros((n_layers, batch, mem_len, width))) if
      mem_len else None, {"raw": True}),
))  # fmt: skip


add_controls("alibi", (
    ("get_alibi_biases_triangle", "counts by a product with a triangle of ones",
     lambda n_heads, visible: attention.get_slopes(n_heads)[:, None, None] * (visible @
      np.tri(visible.shape[1]).T)),
))  # fmt: skip


add_controls("softmax", (
    ("softmax_key_by_key", "an online softmax, key by key", lambda **given:
     attention.softmax(**given, weigh=lambda s, v: online(s, v, block=1))),
    ("softmax_power_of_two", "exp as a power of two", {"weigh": power_of_two}),
    ("scaled_dot_product_attention_sorted_keys", "scores in ascending order, weights brought back",
     {"weigh": sorted_keys}),
))  # fmt: skip


add_controls("masks", (
    ("softmax_added_infinity", "minus infinity added instead of chosen", {"weigh": added_infinity}),
    ("additive_attention_large_sentinel", "hidden keys at -1e30, empty rows cleared", {"weigh":
     large_sentinel}),
))  # fmt: skip


add_controls("scale", (
    ("scaled_dot_product_attention_scaled_queries", "queries scaled before the product",
     lambda query, **given: attention.scaled_dot_product_attention((query
     * inverse_root(query.shape[-1])), **given, scale=lambda D: 1.0)),
))  # fmt: skip


add_controls("causal", (
    ("causal_mask_running_sum", "a frontier from a running sum", lambda N, M:
     np.cumsum((np.arange(M + 1) == np.clip(np.arange(N)[:, None] + M - N + 1, 0, M)), axis=-1)[:,
     :M] == 0),
))  # fmt: skip
