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


RAW = {"raw": True}


def in_place(function: Any, write: Any) -> Any:
    """The right answer, after which some of what was given is written to: of these and it."""

    def wrong(**given: Any) -> Any:
        output = function(**wide(given))
        write(given, output)
        return output

    return wrong


def write_answer(name: str) -> Any:
    def write(given: Any, output: ndarray) -> None:
        given[name][...] = output

    return write


def scale_query(given: Any, _: Any) -> None:
    query = given["query"]
    query *= np.asarray(attention.inverse_root(query.shape[-1]), query.dtype)


def raise_hidden(given: Any, _: Any) -> None:
    mask = given["mask"]
    if mask is not None and mask.dtype != bool:
        mask[...] = np.maximum(mask, np.asarray(-1e4, mask.dtype))


def add_positions(given: Any, _: Any) -> None:
    mems = given["mems"]
    if mems is not None and mems[0].size:
        mems[0] += np.ones_like(mems[0])


def invert_padding(given: Any, _: Any) -> None:
    padding = given["key_padding_mask"]
    if padding is not None:
        np.logical_not(padding, out=padding)


def halve_projection(given: Any, _: Any) -> None:
    given["parameters"]["w_query"] *= np.asarray(0.5, given["x"].dtype)


def clear_arriving(given: Any, _: Any) -> None:
    if 0 not in given["d_output"].strides:
        given["d_output"][...] = 0


@fault("side effects", "a view of the segment where it fills the memory",
       source="this project", clause="update_mems, clause 4",
       reveals="N >= mem_len > 0", raw=True)  # fmt: skip
def update_mems_view(hids: Any, mems: Any, mem_len: int) -> Any:
    if mems is not None and 0 < mem_len <= hids[0].shape[1]:
        return [hid[:, hid.shape[1] - mem_len :] for hid in hids]
    return attention.update_mems(wide(hids), wide(mems), mem_len)


@fault("side effects", "the caller's list of memories replaced",
       source="this project", clause="update_mems, clause 4",
       reveals="the list after the call", raw=True)  # fmt: skip
def update_mems_list_in_place(hids: Any, mems: Any, mem_len: int) -> Any:
    new = attention.update_mems(wide(hids), wide(mems), mem_len)
    if mems is not None:
        mems[:] = [x.astype(hids[0].dtype) for x in new]
    return new


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
      attention.dropout(weights.astype(np.float64), keep, p), RAW),
    ("rel_shift_same_row", "a shift of one row that is its input", "this project", ALIAS, "N = 1",
     lambda x: x if x.shape[-2] == 1 else attention.rel_shift(x.astype(np.float64)),
     RAW),
    ("softmax_in_place", "a softmax in place", "this project", SAME, "the score after the call",
     in_place(attention.softmax, write_answer("score")), RAW),
    ("scaled_dot_product_attention_query_in_place", "queries scaled in place", "this project", SAME,
     "the query after the call", in_place(attention.scaled_dot_product_attention, scale_query),
     RAW),
    ("additive_attention_mask_in_place", "a float mask in which hidden numbers are replaced",
     "this project", SAME, "a float mask after the call",
     in_place(attention.additive_attention, raise_hidden), RAW),
    ("dropout_in_place", "weights dropped in place", "this project", SAME,
     "the weights after the call", in_place(attention.dropout, write_answer("weights")), RAW),
    ("transformer_xl_memory_in_place", "positions added to the caller's memory",
     "kimiyoung/transformer-xl, mems_i += pos_emb", "update_mems, clause 4",
     "mems after the call", in_place(layers.transformer_xl, add_positions), RAW),
    ("multi_head_attention_padding_in_place", "padding inverted in place", "this project", SAME,
     "key_padding_mask after the call", in_place(layers.multi_head_attention, invert_padding),
     RAW),
    ("self_attention_parameter_in_place", "a parameter scaled in place", "this project", SAME,
     "the parameters after the call", in_place(layers.self_attention, halve_projection), RAW),
    ("alibi_attention_grad_workspace", "d_output used as a workspace", "this project", SAME,
     "d_output after the call", in_place(gradients.alibi_attention_grad, clear_arriving), RAW),
    ("merge_masks_same_mask", "a float mask returned as it is", "this project", ALIAS,
     "a float attn_mask, no padding",
     lambda attn_mask, key_padding_mask, num_heads: attention.four_axes(attn_mask, num_heads) if
      attn_mask is not None and attn_mask.dtype != bool and key_padding_mask is None else
      attention.merge_masks(widened(attn_mask), key_padding_mask, num_heads), RAW),
))  # fmt: skip
