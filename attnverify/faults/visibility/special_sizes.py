"""
Faults on paths that are taken for some sizes alone: one key, one head, a wide head, a large batch,
a full table.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.registry import fault
from attnverify.reference import attention, gradients, layers
from attnverify.reference.attention import inverse_root

OURS = "this project"


@fault(
    "softmax",
    "two keys by a logistic function, the wrong way round",
    source=OURS,
    clause="softmax",
    reveals="M = 2",
)
def softmax_of_two_keys(**given: Any) -> Any:
    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        swapped = score.shape[-1] == 2 and visible.all()
        return attention.weigh(score[..., ::-1] if swapped else score, visible)

    return attention.softmax(**given, weigh=weigh)


@fault(
    "masks",
    "a mask [B 1 N M] read as [1 H N M] where B = H",
    source=OURS,
    clause="softmax, clause 1",
    reveals="a mask [B 1 N M], B = H > 1",
)
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


@fault(
    "backward",
    "gradients of columns beyond 64 never written",
    source=OURS,
    clause="gradients by key",
    reveals="D > 64",
)
def alibi_attention_grad_first_64_columns(**given: Any) -> Any:
    d_query, d_key, d_value = gradients.alibi_attention_grad(**given)
    d_key[..., 64:] = 0
    return d_query, d_key, d_value


@fault(
    "alibi",
    "the slopes of the power of two above, cut",
    source=OURS,
    clause="get_slopes, clause 1",
    reveals="H of 3, 5, 6, 12",
)
def alibi_attention_slopes_cut(**given: Any) -> Any:
    def score(query: ndarray, key: ndarray) -> ndarray:
        return attention.alibi_score(
            query, key, slopes=lambda H: attention.get_slopes(1 << (H - 1).bit_length())[:H]
        )

    return attention.alibi_attention(**given, score=score)


@fault(
    "shifts",
    "a single column left as it is",
    source=OURS,
    clause="for every M >= 1",
    reveals="M = 1, N > 1",
)
def rel_shift_single_column(x: ndarray) -> Any:
    return x.copy() if x.shape[-1] == 1 else attention.rel_shift(x)


@fault(
    "masks",
    "one batch's heads read as one mask for all",
    source=OURS,
    clause="merge_masks, clause 2",
    reveals="a mask [B*H N M], B = 1, H > 1",
)
def merge_masks_single_batch(attn_mask: Any, key_padding_mask: Any, num_heads: int) -> Any:
    if attn_mask is not None and attn_mask.ndim == 3 and len(attn_mask) == num_heads:
        attn_mask = np.broadcast_to(attn_mask[:1], attn_mask.shape)
    return attention.merge_masks(attn_mask, key_padding_mask, num_heads)


@fault(
    "relative",
    "the last row of a full table never read",
    source=OURS,
    clause="learned_relative_score, clause 3",
    reveals="M = P, or N = P",
)
def learned_relative_score_full_table(**given: Any) -> Any:
    def rows(N: int, M: int, P: int, align: str) -> ndarray:
        return np.clip(attention.table_rows(N, M, P, align), 2, 2 * P - 2)

    return attention.learned_relative_score(**given, table_rows=rows)


@fault(
    "additive",
    "no tanh where there is one hidden unit",
    source=OURS,
    clause="additive_score",
    reveals="A = 1",
)
def additive_attention_single_unit(w_score: ndarray, **given: Any) -> Any:
    bend = np.tanh if len(w_score) > 1 else (lambda z: z)
    return attention.additive_attention(
        w_score=w_score, **given, score=partial(attention.additive_score, bend=bend)
    )


@fault(
    "dropout",
    "a p beyond 0.8 taken for 0.8",
    source=OURS,
    clause="dropout, clause 2",
    reveals="p > 0.8",
)
def dropout_bounded(weights: ndarray, keep: Any, p: float) -> Any:
    return attention.dropout(weights, keep, min(p, 0.8))


@fault(
    "layers",
    "one head that skips the output projection's bias",
    source=OURS,
    clause="multi_head_attention, clause 1",
    reveals="H = 1, biases",
)
def multi_head_attention_single_head(parameters: Any, num_heads: int, **given: Any) -> Any:
    kept = {name: x for name, x in parameters.items() if num_heads > 1 or name != "out_proj.bias"}
    return layers.multi_head_attention(parameters=kept, num_heads=num_heads, **given)


@fault(
    "memory",
    "an empty memory that stays empty",
    source=OURS,
    clause="update_mems, clause 1",
    reveals="S = 0",
)
def update_mems_empty_memory(hids: Any, mems: Any, mem_len: int) -> Any:
    if mems is not None and mems[0].shape[1] == 0:
        return [mem.copy() for mem in mems]
    return attention.update_mems(hids, mems, mem_len)


@fault(
    "dropout",
    "a draw that broadcasts, read for the first head alone",
    source=OURS,
    clause="dropout, clause 1",
    reveals="keep [N M] or [B 1 N M], H > 1",
)
def scaled_dot_product_attention_draw_broadcast(
    keep: Any = None, query: Any = None, **given: Any
) -> Any:
    if keep is not None and (keep.ndim < 4 or keep.shape[1] == 1):
        keep = (
            np.broadcast_to(keep, (*query.shape[:3], keep.shape[-1]))
            | (np.arange(query.shape[1]) > 0)[:, None, None]
        )
    return attention.scaled_dot_product_attention(query=query, keep=keep, **given)


@fault("alibi", "one head with the slope 1", source=OURS, clause="get_slopes", reveals="H = 1")
def get_slopes_single_head(n_heads: int) -> Any:
    return np.ones(1) if n_heads == 1 else attention.get_slopes(n_heads)


@fault(
    "numerics",
    "outputs bounded by 1000",
    source=OURS,
    clause="the sum of weights and values",
    reveals="values beyond 1000",
)
def scaled_dot_product_attention_bounded(**given: Any) -> Any:
    return np.clip(attention.scaled_dot_product_attention(**given), -1000, 1000)


@fault(
    "blocks",
    "a product over the first 128 columns",
    source=OURS,
    clause="scaled_dot_product_score",
    reveals="D > 128",
)
def alibi_attention_first_128_columns(query: ndarray, key: ndarray, **given: Any) -> Any:
    def score(query: ndarray, key: ndarray) -> ndarray:
        return attention.alibi_score(
            query, key, products=lambda q, k: q[..., :128] @ k[..., :128].mT
        )

    return attention.alibi_attention(query, key, **given, score=score)


@fault("blocks", "batches beyond 8 never written", source=OURS, clause="[B H N E]", reveals="B > 8")
def learned_relative_attention_first_8_batches(**given: Any) -> Any:
    output = attention.learned_relative_attention(**given)
    output[8:] = 0
    return output


@fault(
    "blocks",
    "hidden units beyond 64 left out",
    source=OURS,
    clause="additive_score",
    reveals="A > 64",
)
def additive_score_first_64_units(w_score: ndarray, **given: Any) -> Any:
    return attention.additive_score(
        w_score=np.where(np.arange(len(w_score)) < 64, w_score, 0), **given
    )


@fault(
    "memory",
    "memories beyond 64 positions cut",
    source=OURS,
    clause="update_mems, clause 1",
    reveals="S > 64",
)
def update_mems_first_64(hids: Any, mems: Any, mem_len: int) -> Any:
    return attention.update_mems(
        hids, None if mems is None else [mem[:, -64:] for mem in mems], mem_len
    )


@fault(
    "scale",
    "the scale of a head of 128 for every head beyond",
    source=OURS,
    clause="scaled_dot_product_score",
    reveals="D > 128",
)
def transformer_xl_score_scale_of_128(**given: Any) -> Any:
    return attention.transformer_xl_score(**given, scale=lambda D: inverse_root(min(D, 128)))


@fault(
    "relative",
    "one position whose distance is 1",
    source=OURS,
    clause="sinusoidal_positions, clause 1",
    reveals="M = 1",
)
def sinusoidal_positions_single(M: int, F: int) -> Any:
    return attention.sinusoidal_positions(M, F, distance=np.arange(M)[::-1] + (M == 1))


@fault(
    "layers",
    "a norm over the first 128 columns' variance",
    source=OURS,
    clause="transformer_xl_layer, clause 3",
    reveals="F > 128",
)
def transformer_xl_layer_first_128_columns(**given: Any) -> Any:
    def norm(x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
        part = x[..., :128]
        y = (
            weight
            * (x - part.mean(axis=-1, keepdims=True))
            / np.sqrt(part.var(axis=-1, keepdims=True) + eps)
        )
        return y if bias is None else y + bias

    return layers.transformer_xl_layer(**given, norm=norm)


@fault(
    "relative",
    "the gradient by the table of the first two batches alone",
    source=OURS,
    clause="learned_relative_attention_grad: the sum over b",
    reveals="B > 2",
)
def learned_relative_attention_grad_two_batches(d_output: ndarray, **given: Any) -> Any:
    grads = list(gradients.learned_relative_attention_grad(d_output, **given))
    two = np.where(np.arange(len(d_output))[:, None, None, None] < 2, d_output, 0)
    grads[3] = gradients.learned_relative_attention_grad(two, **given)[3]
    return tuple(grads)
