"""
Faults of elements that lie far out: rows, columns, positions and counts beyond the thousands are
left out, cut, or kept in a type that cannot hold them.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.real_sizes.table import OURS, add_fault
from attnverify.faults.registry import add_faults, fault
from attnverify.reference import attention, gradients, layers


def zero_beyond(output: ndarray, axis: int, size: int) -> ndarray:
    """The output, zeros behind so many places of an axis."""
    kept = np.arange(output.shape[axis]) < size
    shape = [1] * output.ndim
    shape[axis] = -1
    return np.where(kept.reshape(shape), output, 0)


for operation in ("scaled_dot_product_score", "additive_score", "transformer_xl_score"):
    add_fault(
        operation,
        "first_4096_keys",
        lambda operation=operation, **given: zero_beyond(
            getattr(attention, operation)(**given), -1, 4096
        ),
        kind="blocks",
        words="scores beyond key 4096 never written",
        clause=operation,
        reveals="M > 4096",
    )


for operation in ("rel_shift", "shift_right"):
    add_fault(
        operation,
        "first_4096_columns",
        lambda x, operation=operation: np.concatenate(
            [getattr(attention, operation)(x)[..., :4096], x[..., 4096:]], axis=-1
        ),
        kind="shifts",
        words="columns beyond 4096 left where they are",
        clause="for every N, M >= 1",
        reveals="M > 4096",
    )


@fault("masks", "padding beyond 4096 keys ignored", source=OURS,
       clause="merge_masks, clause 3", reveals="M > 4096 and key_padding_mask")  # fmt: skip
def merge_masks_padding_of_4096(attn_mask: Any, key_padding_mask: Any, num_heads: int) -> Any:
    if key_padding_mask is not None:
        key_padding_mask = key_padding_mask & (np.arange(key_padding_mask.shape[-1]) < 4096)
    return attention.merge_masks(attn_mask, key_padding_mask, num_heads)


@fault("layers", "keys beyond 4096 not attended to", source=OURS,
       clause="multi_head_attention", reveals="M > 4096")  # fmt: skip
def multi_head_attention_first_4096_keys(
    key: ndarray, value: ndarray, attn_mask: Any = None, key_padding_mask: Any = None, **given: Any
) -> Any:
    hidden = np.arange(key.shape[1]) >= 4096
    padding = np.broadcast_to(hidden, key.shape[:2])
    padding = padding if key_padding_mask is None else padding | key_padding_mask
    return layers.multi_head_attention(
        key=key, value=value, attn_mask=attn_mask, key_padding_mask=padding, **given
    )


@fault("layers", "memory positions before the last 4096 lost", source=OURS,
       clause="transformer_xl_layer, clause 1", reveals="S > 4096")  # fmt: skip
def transformer_xl_layer_last_4096_memories(
    mem: Any = None, visible: Any = None, **given: Any
) -> Any:
    if mem is not None:
        S, N = mem.shape[1], given["x"].shape[1]
        seen = np.arange(S + N) >= S - 4096
        visible = np.broadcast_to(seen, (N, S + N)) if visible is None else visible & seen
    return layers.transformer_xl_layer(mem=mem, visible=visible, **given)


@fault("layers", "rows beyond 1024 that see 1024 positions", source=OURS,
       clause="self_attention", reveals="N > 1024")  # fmt: skip
def self_attention_first_1024(x: ndarray, parameters: Any, mask: Any = None) -> Any:
    N = x.shape[1]
    inside = (np.arange(N) < 1024) | (np.arange(N)[:, None] < 1024)
    inside = (
        inside
        if mask is None
        else inside & mask
        if mask.dtype == bool
        else np.where(inside, mask, -np.inf)
    )
    return layers.self_attention(x, parameters, inside)


@fault("backward", "the gradient by the positions of distances below 4096 alone",
       source=OURS, clause="gradients by position", reveals="M > 4096")  # fmt: skip
def transformer_xl_attention_grad_first_4096_positions(**given: Any) -> Any:
    found = list(gradients.transformer_xl_attention_grad(**given))
    found[3] = found[3] * (np.arange(found[3].shape[1])[::-1] < 4096)[:, None]
    return tuple(found)


add_faults("causal", (
    ("causal_mask_first_4096", "keys beyond 4096 always visible", OURS, "j <= M - N + i",
     "M > 4097", lambda N, M: attention.causal_mask(N, M) | (np.arange(M) >= 4096)),
))  # fmt: skip


add_faults("memory", (
    ("update_mems_first_1024", "memories beyond 1024 positions cut", OURS,
     "update_mems, clause 1", "S + N > 1024, mem_len > 1024",
     lambda hids, mems, mem_len: attention.update_mems(hids, mems, min(mem_len, 1024))),
))  # fmt: skip


add_faults("relative", (
    ("learned_relative_score_distance_of_4096", "distances beyond 4096 read as 4096", OURS,
     "learned_relative_score", "M > 4097", lambda **given: attention.learned_relative_score(
     **given, table_rows=lambda N, M, P, align: ( P + np.clip(attention.table_rows(N, M, P,
     align) - P, -4096, 4096) ), )),
    ("sinusoidal_positions_half_distances", "distances beyond 2048 in float16", OURS,
     "sinusoidal_positions", "M > 2049", lambda M, F: attention.sinusoidal_positions(M, F,
     distance=np.arange(M)[::-1].astype(np.float16).astype(np.float64))),
))  # fmt: skip


add_faults("alibi", (
    ("get_alibi_biases_count_of_4095", "visible keys counted up to 4095", OURS, "get_alibi_biases",
     "M > 4095", lambda n_heads, visible: attention.get_slopes(n_heads)[:, None, None]
     * np.minimum(np.cumsum(visible, axis=-1), 4095)),
))  # fmt: skip


add_faults("dropout", (
    ("dropout_first_4096_keys", "weights beyond 4096 keys kept unscaled", OURS,
     "dropout, clause 2", "M > 4096", lambda weights, keep, p:
     np.where((np.arange(weights.shape[-1]) < 4096), attention.dropout(weights, keep, p), weights)),
))  # fmt: skip


add_faults("backward", (
    ("scaled_dot_product_attention_grad_first_1536_queries",
     "queries beyond 1536 left out of the key's gradient", OURS, "gradients by key", "N > 1536",
     lambda **given: gradients.scaled_dot_product_attention_grad( **given, key_grad=lambda d,
     visible, query: gradients.key_grad( d[..., :1536, :], visible[..., :1536, :], query[...,
     :1536, :] ), )),
    ("scaled_dot_product_attention_grad_first_4096_keys",
     "the query's gradient from the first 4096 keys", OURS, "gradients by query", "M > 4096",
     lambda **given: gradients.scaled_dot_product_attention_grad( **given, query_grad=lambda d,
     visible, key: gradients.query_grad( d[..., :4096], visible[..., :4096], key[..., :4096, :] ),
     )),
))  # fmt: skip
