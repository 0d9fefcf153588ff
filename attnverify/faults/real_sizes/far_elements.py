"""
Faults of elements that lie far out: rows, columns, positions and counts beyond the thousands are
left out, cut, or kept in a type that cannot hold them.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.conventions.layer_rows import with_arguments
from attnverify.conventions.visibility import hidden_but
from attnverify.faults.changes import along, first, where_given, with_outputs, written
from attnverify.faults.registry import OURS, add_faults, reference_of
from attnverify.inputs.recipe import Inputs
from attnverify.reference import attention, gradients, layers


def of_4096_keys(given: Inputs) -> ndarray:
    """Padding, and keys beyond 4096 hidden."""
    hidden = np.arange(given["key"].shape[1]) >= 4096
    padding = np.broadcast_to(hidden, given["key"].shape[:2])
    own = given.get("key_padding_mask")
    return padding if own is None else padding | own


def of_last_memories(given: Inputs) -> Any:
    """What is visible, but for memories before the last 4096."""
    if given.get("mem") is None:
        return given.get("visible")
    S, N = given["mem"].shape[1], given["x"].shape[1]
    return hidden_but(given.get("visible"), np.tile(np.arange(S + N) >= S - 4096, (N, 1)))


def of_first_rows(given: Inputs) -> ndarray:
    """The mask, and rows beyond 1024 that see 1024 positions."""
    inside = np.arange(given["x"].shape[1]) < 1024
    return hidden_but(given.get("mask"), inside | inside[:, None])


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
    ("transformer_xl_attention_grad_first_4096_positions",
     "the gradient by the positions of distances below 4096 alone", OURS, "gradients by position",
     "M > 4096", with_outputs(gradients.transformer_xl_attention_grad, {3: lambda d, x:
      along(1, lambda i, M: i >= M - 4096)(d)})),
))  # fmt: skip

add_faults("masks", (
    ("merge_masks_padding_of_4096", "padding beyond 4096 keys ignored", OURS,
     "merge_masks, clause 3", "M > 4096 and key_padding_mask",
     where_given(attention.merge_masks, key_padding_mask=lambda padding, x:
      first(4096, -1)(padding).astype(bool))),
))  # fmt: skip

add_faults("layers", (
    ("multi_head_attention_first_4096_keys", "keys beyond 4096 not attended to", OURS,
     "multi_head_attention", "M > 4096",
     with_arguments(layers.multi_head_attention, key_padding_mask=of_4096_keys)),
    ("transformer_xl_layer_last_4096_memories", "memory positions before the last 4096 lost", OURS,
     "transformer_xl_layer, clause 1", "S > 4096",
     with_arguments(layers.transformer_xl_layer, visible=of_last_memories)),
    ("self_attention_first_1024", "rows beyond 1024 that see 1024 positions", OURS,
     "self_attention", "N > 1024", with_arguments(layers.self_attention, mask=of_first_rows)),
))  # fmt: skip

add_faults("blocks", (
    *((f"{name}_score_first_4096_keys", "scores beyond key 4096 never written", OURS,
       f"{name}_score", "M > 4096",
       with_outputs(reference_of(f"{name}_score"), {0: written(4096, -1)}))
      for name in ("scaled_dot_product", "additive", "transformer_xl")),
))  # fmt: skip

add_faults("shifts", (
    *((f"{name}_first_4096_columns", "columns beyond 4096 left where they are", OURS,
       "for every N, M >= 1", "M > 4096",
       with_outputs(reference_of(name), {0: lambda y, x: np.where(np.arange(y.shape[-1]) < 4096, y,
        x["x"])})) for name in ("rel_shift", "shift_right")),
))  # fmt: skip
