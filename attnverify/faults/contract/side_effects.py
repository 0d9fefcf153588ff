"""Side effects: inputs that change, outputs that are their inputs."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.pytrees import map_leaves
from attnverify.faults.adapter import widened
from attnverify.faults.registry import add_faults, fault
from attnverify.reference import attention, gradients, layers

SAME, ALIAS = "inputs are unchanged", "outputs share no memory with inputs"


def wide(given: Any) -> Any:
    return map_leaves(widened, given)


@fault("side effects", "a softmax in place", source="this project", clause=SAME,
       reveals="the score after the call", raw=True)  # fmt: skip
def softmax_in_place(score: ndarray, mask: Any = None) -> Any:
    weights = attention.softmax(score.astype(np.float64), mask)
    score[...] = weights
    return weights


@fault("side effects", "queries scaled in place", source="this project",
       clause=SAME, reveals="the query after the call", raw=True)  # fmt: skip
def scaled_dot_product_attention_query_in_place(query: ndarray, **given: Any) -> Any:
    output = attention.scaled_dot_product_attention(**wide({"query": query, **given}))
    query *= np.asarray(attention.inverse_root(query.shape[-1]), query.dtype)
    return output


@fault("side effects", "a float mask in which hidden numbers are replaced",
       source="this project", clause=SAME, reveals="a float mask after the call",
       raw=True)  # fmt: skip
def additive_attention_mask_in_place(mask: Any = None, **given: Any) -> Any:
    output = attention.additive_attention(**wide({"mask": mask, **given}))
    if mask is not None and mask.dtype != bool:
        mask[...] = np.maximum(mask, np.asarray(-1e4, mask.dtype))
    return output


@fault("side effects", "weights dropped in place", source="this project",
       clause=SAME, reveals="the weights after the call", raw=True)  # fmt: skip
def dropout_in_place(weights: ndarray, keep: Any, p: float) -> Any:
    output = attention.dropout(weights.astype(np.float64), keep, p)
    weights[...] = output
    return output


@fault("side effects", "a view of the segment where it fills the memory",
       source="this project", clause="update_mems, clause 4",
       reveals="N >= mem_len > 0", raw=True)  # fmt: skip
def update_mems_view(hids: Any, mems: Any, mem_len: int) -> Any:
    if mems is not None and 0 < mem_len <= hids[0].shape[1]:
        return [hid[:, hid.shape[1] - mem_len :] for hid in hids]
    return attention.update_mems(wide(hids), wide(mems), mem_len)


@fault("side effects", "positions added to the caller's memory",
       source="kimiyoung/transformer-xl, mems_i += pos_emb",
       clause="update_mems, clause 4", reveals="mems after the call", raw=True)  # fmt: skip
def transformer_xl_memory_in_place(mems: Any, **given: Any) -> Any:
    output = layers.transformer_xl(**wide({"mems": mems, **given}))
    if mems is not None and mems[0].size:
        mems[0] += np.ones_like(mems[0])
    return output


@fault("side effects", "the caller's list of memories replaced",
       source="this project", clause="update_mems, clause 4",
       reveals="the list after the call", raw=True)  # fmt: skip
def update_mems_list_in_place(hids: Any, mems: Any, mem_len: int) -> Any:
    new = attention.update_mems(wide(hids), wide(mems), mem_len)
    if mems is not None:
        mems[:] = [x.astype(hids[0].dtype) for x in new]
    return new


@fault("side effects", "a float mask returned as it is", source="this project",
       clause=ALIAS, reveals="a float attn_mask, no padding", raw=True)  # fmt: skip
def merge_masks_same_mask(attn_mask: Any, key_padding_mask: Any, num_heads: int) -> Any:
    if attn_mask is not None and attn_mask.dtype != bool and key_padding_mask is None:
        return attention.four_axes(attn_mask, num_heads)
    return attention.merge_masks(widened(attn_mask), key_padding_mask, num_heads)


@fault("side effects", "padding inverted in place", source="this project",
       clause=SAME, reveals="key_padding_mask after the call", raw=True)  # fmt: skip
def multi_head_attention_padding_in_place(key_padding_mask: Any = None, **given: Any) -> Any:
    output = layers.multi_head_attention(**wide(given), key_padding_mask=key_padding_mask)
    if key_padding_mask is not None:
        np.logical_not(key_padding_mask, out=key_padding_mask)
    return output


@fault("side effects", "a parameter scaled in place", source="this project",
       clause=SAME, reveals="the parameters after the call", raw=True)  # fmt: skip
def self_attention_parameter_in_place(x: ndarray, parameters: Any, mask: Any = None) -> Any:
    output = layers.self_attention(**wide({"x": x, "parameters": parameters, "mask": mask}))
    parameters["w_query"] *= np.asarray(0.5, x.dtype)
    return output


@fault("side effects", "d_output used as a workspace", source="this project",
       clause=SAME, reveals="d_output after the call", raw=True)  # fmt: skip
def alibi_attention_grad_workspace(d_output: ndarray, **given: Any) -> Any:
    grads = gradients.alibi_attention_grad(**wide({"d_output": d_output, **given}))
    if 0 not in d_output.strides:
        d_output[...] = 0
    return grads


@fault("side effects", "the value itself where there is one key",
       source="this project", clause=ALIAS, reveals="M = N = 1, no mask", raw=True)  # fmt: skip
def learned_relative_attention_single_value(
    value: ndarray, visible: Any = None, **given: Any
) -> Any:
    if visible is None and value.shape[2] == given["query"].shape[2] == 1:
        return value
    return attention.learned_relative_attention(
        **wide({"value": value, "visible": visible, **given})
    )


@fault("side effects", "one array for all layers", source="this project",
       clause="init_mems, clause 2", reveals="L > 1", raw=True)  # fmt: skip
def init_mems_one_array(n_layers: int, mem_len: int, batch: int, width: int) -> Any:
    mems = attention.init_mems(n_layers, mem_len, batch, width)
    return mems and [mems[0]] * n_layers


add_faults("side effects", (
    ("dropout_same_array", "the weights themselves where p = 0", "this project", ALIAS, "p = 0",
     lambda weights, keep, p: weights if p == 0 and (keep is None or keep.all()) else
      attention.dropout(weights.astype(np.float64), keep, p), {"raw": True}),
    ("rel_shift_same_row", "a shift of one row that is its input", "this project", ALIAS, "N = 1",
     lambda x: x if x.shape[-2] == 1 else attention.rel_shift(x.astype(np.float64)),
     {"raw": True}),
))  # fmt: skip
