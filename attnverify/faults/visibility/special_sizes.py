"""
Faults on paths that are taken for some sizes alone: one key, one head, a wide head, a large batch,
a full table.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.registry import add_faults, fault
from attnverify.reference import attention, gradients, layers
from attnverify.reference.attention import inverse_root

OURS = "this project"


def of_two_keys(score: ndarray, visible: ndarray) -> ndarray:
    swapped = score.shape[-1] == 2 and visible.all()
    return attention.weigh(score[..., ::-1] if swapped else score, visible)


@fault("masks", "a mask [B 1 N M] read as [1 H N M] where B = H", source=OURS,
       clause="softmax, clause 1", reveals="a mask [B 1 N M], B = H > 1")  # fmt: skip
def scaled_dot_product_attention_mask_axes_exchanged(
    query: ndarray, mask: Any = None, **given: Any
) -> Any:
    if (
        mask is not None
        and mask.ndim == 4
        and mask.shape[1] == 1
        and query.shape[0] == query.shape[1]
    ):
        mask = mask.swapaxes(0, 1)
    return attention.scaled_dot_product_attention(query, mask=mask, **given)


@fault("backward", "gradients of columns beyond 64 never written", source=OURS,
       clause="gradients by key", reveals="D > 64")  # fmt: skip
def alibi_attention_grad_first_64_columns(**given: Any) -> Any:
    d_query, d_key, d_value = gradients.alibi_attention_grad(**given)
    d_key[..., 64:] = 0
    return d_query, d_key, d_value


@fault("masks", "one batch's heads read as one mask for all", source=OURS,
       clause="merge_masks, clause 2", reveals="a mask [B*H N M], B = 1, H > 1")  # fmt: skip
def merge_masks_single_batch(attn_mask: Any, key_padding_mask: Any, num_heads: int) -> Any:
    if attn_mask is not None and attn_mask.ndim == 3 and len(attn_mask) == num_heads:
        attn_mask = np.broadcast_to(attn_mask[:1], attn_mask.shape)
    return attention.merge_masks(attn_mask, key_padding_mask, num_heads)


@fault("memory", "an empty memory that stays empty", source=OURS,
       clause="update_mems, clause 1", reveals="S = 0")  # fmt: skip
def update_mems_empty_memory(hids: Any, mems: Any, mem_len: int) -> Any:
    if mems is not None and mems[0].shape[1] == 0:
        return [mem.copy() for mem in mems]
    return attention.update_mems(hids, mems, mem_len)


@fault("dropout", "a draw that broadcasts, read for the first head alone",
       source=OURS, clause="dropout, clause 1",
       reveals="keep [N M] or [B 1 N M], H > 1")  # fmt: skip
def scaled_dot_product_attention_draw_broadcast(
    keep: Any = None, query: Any = None, **given: Any
) -> Any:
    if keep is not None and (keep.ndim < 4 or keep.shape[1] == 1):
        keep = (
            np.broadcast_to(keep, (*query.shape[:3], keep.shape[-1]))
            | (np.arange(query.shape[1]) > 0)[:, None, None]
        )
    return attention.scaled_dot_product_attention(query=query, keep=keep, **given)


@fault("blocks", "batches beyond 8 never written", source=OURS, clause="[B H N E]",
       reveals="B > 8")  # fmt: skip
def learned_relative_attention_first_8_batches(**given: Any) -> Any:
    output = attention.learned_relative_attention(**given)
    output[8:] = 0
    return output


def first_128_columns(x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
    part = x[..., :128]
    y = (
        weight
        * (x - part.mean(axis=-1, keepdims=True))
        / np.sqrt(part.var(axis=-1, keepdims=True) + eps)
    )
    return y if bias is None else y + bias


@fault("relative", "the gradient by the table of the first two batches alone",
       source=OURS, clause="learned_relative_attention_grad: the sum over b",
       reveals="B > 2")  # fmt: skip
def learned_relative_attention_grad_two_batches(d_output: ndarray, **given: Any) -> Any:
    grads = list(gradients.learned_relative_attention_grad(d_output, **given))
    two = np.where(np.arange(len(d_output))[:, None, None, None] < 2, d_output, 0)
    grads[3] = gradients.learned_relative_attention_grad(two, **given)[3]
    return tuple(grads)


add_faults("shifts", (
    ("rel_shift_single_column", "a single column left as it is", OURS, "for every M >= 1",
     "M = 1, N > 1", lambda x: x.copy() if x.shape[-1] == 1 else attention.rel_shift(x)),
))  # fmt: skip


add_faults("dropout", (
    ("dropout_bounded", "a p beyond 0.8 taken for 0.8", OURS, "dropout, clause 2", "p > 0.8",
     lambda weights, keep, p: attention.dropout(weights, keep, min(p, 0.8))),
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
))  # fmt: skip


add_faults("memory", (
    ("update_mems_first_64", "memories beyond 64 positions cut", OURS, "update_mems, clause 1",
     "S > 64",
     lambda hids, mems, mem_len: attention.update_mems(hids, None if mems is None else [mem[:,
      -64:] for mem in mems], mem_len)),
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
     "transformer_xl_layer, clause 3", "F > 128", {"norm": first_128_columns}),
))  # fmt: skip
