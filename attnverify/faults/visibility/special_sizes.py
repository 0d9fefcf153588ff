"""
Faults on paths that are taken for some sizes alone: one key, one head, a wide head, a large batch,
a full table.
"""

from functools import partial

import numpy as np
from numpy import ndarray

from attnverify.faults.changes import first, normed_by, of_part, where_given, with_outputs, written
from attnverify.faults.registry import OURS, add_faults
from attnverify.inputs.recipe import Inputs
from attnverify.reference import attention, gradients, layers
from attnverify.reference.attention import inverse_root


def of_two_keys(score: ndarray, visible: ndarray) -> ndarray:
    swapped = score.shape[-1] == 2 and visible.all()
    return attention.weigh(score[..., ::-1] if swapped else score, visible)


def of_square(mask: ndarray, given: Inputs) -> ndarray:
    """A mask [B 1 N M] read as [1 H N M] where B = H."""
    B, H = given["query"].shape[:2]
    return mask.swapaxes(0, 1) if mask.ndim == 4 and mask.shape[1] == 1 and B == H else mask


def for_first_head(keep: ndarray, given: Inputs) -> ndarray:
    """A draw that broadcasts, everything kept in the other heads."""
    if keep.ndim == 4 and keep.shape[1] > 1:
        return keep
    others = np.arange(given["query"].shape[1]) > 0
    whole = np.broadcast_to(keep, (*given["query"].shape[:3], keep.shape[-1]))
    return whole | others[:, None, None]


def of_first_head(mask: ndarray, given: Inputs) -> ndarray:
    """One batch's heads read as one mask for all."""
    alone = mask.ndim == 3 and len(mask) == given["num_heads"]
    return np.broadcast_to(mask[:1], mask.shape) if alone else mask


add_faults("shifts", (
    ("rel_shift_single_column", "a single column left as it is", OURS, "for every M >= 1",
     "M = 1, N > 1", lambda x: x.copy() if x.shape[-1] == 1 else attention.rel_shift(x)),
))  # fmt: skip


add_faults("dropout", (
    ("dropout_bounded", "a p beyond 0.8 taken for 0.8", OURS, "dropout, clause 2", "p > 0.8",
     lambda weights, keep, p: attention.dropout(weights, keep, min(p, 0.8))),
    ("scaled_dot_product_attention_draw_broadcast",
     "a draw that broadcasts, read for the first head alone", OURS, "dropout, clause 1",
     "keep [N M] or [B 1 N M], H > 1",
     where_given(attention.scaled_dot_product_attention, keep=for_first_head)),
))  # fmt: skip


add_faults("alibi", (
    ("get_slopes_single_head", "one head with the slope 1", OURS, "get_slopes", "H = 1",
     lambda n_heads: np.ones(1) if n_heads == 1 else attention.get_slopes(n_heads)),
))  # fmt: skip


add_faults("numerics", (
    ("scaled_dot_product_attention_bounded", "outputs bounded by 1000", OURS,
     "the sum of weights and values", "values beyond 1000",
     lambda **given: np.clip(attention.scaled_dot_product_attention(**given), -1000, 1000)),
))  # fmt: skip


add_faults("blocks", (
    ("additive_score_first_64_units", "hidden units beyond 64 left out", OURS, "additive_score",
     "A > 64",
     lambda w_score, **given: attention.additive_score(w_score=np.where(np.arange(len(w_score)) <
      64, w_score, 0), **given)),
    ("alibi_attention_first_128_columns", "a product over the first 128 columns", OURS,
     "scaled_dot_product_score", "D > 128", lambda query, key, **given:
     attention.alibi_attention( query, key, **given, score=lambda query, key:
     attention.alibi_score( query, key, products=lambda q, k: q[..., :128] @ k[..., :128].mT ), )),
    ("learned_relative_attention_first_8_batches", "batches beyond 8 never written", OURS,
     "[B H N E]", "B > 8", with_outputs(attention.learned_relative_attention, {0: written(8)})),
))  # fmt: skip


add_faults("memory", (
    ("update_mems_first_64", "memories beyond 64 positions cut", OURS, "update_mems, clause 1",
     "S > 64",
     lambda hids, mems, mem_len: attention.update_mems(hids, None if mems is None else [mem[:,
      -64:] for mem in mems], mem_len)),
    ("update_mems_empty_memory", "an empty memory that stays empty", OURS,
     "update_mems, clause 1", "S = 0",
     with_outputs(attention.update_mems, {0: lambda new, x: new if x["mems"] is None or
      x["mems"][0].shape[1] else [mem.copy() for mem in x["mems"]]})),
))  # fmt: skip


add_faults("scale", (
    ("transformer_xl_score_scale_of_128", "the scale of a head of 128 for every head beyond",
     OURS, "scaled_dot_product_score", "D > 128", {"scale": lambda D: inverse_root(min(D, 128))}),
))  # fmt: skip


add_faults("relative", (
    ("sinusoidal_positions_single", "one position whose distance is 1", OURS,
     "sinusoidal_positions, clause 1", "M = 1",
     lambda M, F: attention.sinusoidal_positions(M, F, distance=np.arange(M)[::-1] + (M == 1))),
    ("learned_relative_score_full_table", "the last row of a full table never read", OURS,
     "learned_relative_score, clause 3", "M = P, or N = P", lambda **given:
     attention.learned_relative_score( **given, table_rows=lambda N, M, P, align:
     np.clip( attention.table_rows(N, M, P, align), 2, 2 * P - 2 ), )),
    ("learned_relative_attention_grad_two_batches",
     "the gradient by the table of the first two batches alone", OURS,
     "learned_relative_attention_grad: the sum over b", "B > 2",
     of_part(gradients.learned_relative_attention_grad, [3], first(2))),
))  # fmt: skip


add_faults("softmax", (
    ("softmax_of_two_keys", "two keys by a logistic function, the wrong way round", OURS,
     "softmax", "M = 2", {"weigh": of_two_keys}),
))  # fmt: skip


add_faults("additive", (
    ("additive_attention_single_unit", "no tanh where there is one hidden unit", OURS,
     "additive_score", "A = 1", lambda w_score, **given: attention.additive_attention(
     w_score=w_score, **given, score=partial(attention.additive_score, bend=np.tanh
     if len(w_score) > 1 else (lambda z: z)) )),
))  # fmt: skip


add_faults("layers", (
    ("multi_head_attention_single_head", "one head that skips the output projection's bias", OURS,
     "multi_head_attention, clause 1", "H = 1, biases", lambda parameters, num_heads, **given:
     layers.multi_head_attention(parameters={name: x for name, x in parameters.items()
     if num_heads > 1 or name != "out_proj.bias"}, num_heads=num_heads, **given)),
    ("transformer_xl_layer_first_128_columns", "a norm over the first 128 columns' variance", OURS,
     "transformer_xl_layer, clause 3", "F > 128", {"norm": partial(normed_by, 128)}),
))  # fmt: skip

add_faults("masks", (
    ("scaled_dot_product_attention_mask_axes_exchanged",
     "a mask [B 1 N M] read as [1 H N M] where B = H", OURS, "softmax, clause 1",
     "a mask [B 1 N M], B = H > 1",
     where_given(attention.scaled_dot_product_attention, mask=of_square)),
    ("merge_masks_single_batch", "one batch's heads read as one mask for all", OURS,
     "merge_masks, clause 2", "a mask [B*H N M], B = 1, H > 1",
     where_given(attention.merge_masks, attn_mask=of_first_head)),
))  # fmt: skip

add_faults("backward", (
    ("alibi_attention_grad_first_64_columns", "gradients of columns beyond 64 never written", OURS,
     "gradients by key", "D > 64",
     with_outputs(gradients.alibi_attention_grad, {1: written(64, -1)})),
))  # fmt: skip
