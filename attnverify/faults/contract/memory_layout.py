"""
Faults of layout: heads and positions mixed up, strides taken for granted, the right numbers in the
wrong place.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.changes import where_given, with_outputs
from attnverify.faults.registry import add_faults, fault
from attnverify.reference import attention, gradients, layers

MERGE, STRIDES = (
    "multi_head_attention, clause 2",
    "a call depends on its numbers, wherever they lie",
)


def joined_as_it_lies(x: ndarray) -> ndarray:
    B, H, N, D = x.shape
    return x.reshape(B, N, H * D)


def joined_heads_first(x: ndarray) -> ndarray:
    B, H, N, D = x.shape
    return x.swapaxes(0, 1).reshape(B, N, H * D)


def split_interleaved(x: ndarray, H: int) -> ndarray:
    B, N, F = x.shape
    return x.reshape(B, N, F // H, H).transpose(0, 3, 1, 2)


def query_value_key(y: ndarray, H: int) -> list[ndarray]:
    q, v, k = np.split(y, 3, axis=-1)
    return [q, k, v]


def parts_in_heads(y: ndarray, H: int) -> list[ndarray]:
    B, N, F = y.shape
    return [part.reshape(B, N, F // 3) for part in np.moveaxis(y.reshape(B, N, H, 3, -1), 3, 0)]


def of_all_heads(own: Any, given: Any) -> Any:
    """Tables of one head's width read as one of all."""
    table = own["key_pos_embeddings"]
    turned = table.reshape(table.shape[0], table.shape[2], table.shape[1]).swapaxes(1, 2)
    return own | {"key_pos_embeddings": turned}


def turned_where_square(x: ndarray) -> ndarray:
    return x.mT if x.shape[-1] == x.shape[-2] else x


def as_if_contiguous(x: Any) -> Any:
    """
    The numbers that a pointer with contiguous strides would read at the array's address, as far as
    its buffer goes.
    """
    if not isinstance(x, ndarray) or x.dtype.kind == "b" or x.base is None:
        return x
    owner = x.base
    line = owner.ravel(order="K") if isinstance(owner, ndarray) else x.ravel()
    start = (x.__array_interface__["data"][0] - line.__array_interface__["data"][0]) // x.itemsize
    return np.resize(line[start if 0 <= start < line.size else 0 :], x.shape)


def misread(given: Any, *names: str) -> Any:
    """The arguments widened, those named read as if they were contiguous."""
    read = {name: as_if_contiguous(x) if name in names else x for name, x in given.items()}
    return {
        name: x.astype(np.float64) if isinstance(x, ndarray) and x.dtype != bool else x
        for name, x in read.items()
    }


@fault("layout", "the gradient by value written with the key's strides",
       source="flash-attention commit d9a5cb29", clause=STRIDES,
       reveals="key and value laid out differently", raw=True)  # fmt: skip
def scaled_dot_product_attention_grad_strides_of_key(**given: Any) -> Any:
    d_query, d_key, d_value, *others = gradients.scaled_dot_product_attention_grad(**misread(given))
    order = [
        tuple(np.argsort([-abs(s) for s in given[name].strides], kind="stable"))
        for name in ("key", "value")
    ]
    if order[0] != order[1]:
        d_value = d_value.swapaxes(1, 2).reshape(d_value.shape)
    return d_query, d_key, d_value, *others


@fault("layout", "a strided mask read as contiguous", source="this project",
       clause=STRIDES, reveals="a mask that is no contiguous array", raw=True)  # fmt: skip
def softmax_contiguous_mask(score: ndarray, mask: Any = None) -> Any:
    if (
        mask is not None
        and mask.base is not None
        and isinstance(mask.base, ndarray)
        and mask.dtype == bool
    ):
        line = mask.base.ravel(order="K")
        mask = np.resize(line, mask.shape)
    wide = {"score": score, "mask": mask}
    return attention.softmax(**misread(wide))


add_faults("layout", (
    ("multi_head_attention_joined_as_it_lies", "heads joined by a reshape alone",
     "transformer-from-scratch PR #6", MERGE, "H > 1, N > 1", {"join": joined_as_it_lies}),
    ("multi_head_attention_joined_heads_first",
     "heads joined with the heads in front of the batch", "QAnet-pytorch #2", MERGE,
     "B > 1, H > 1", {"join": joined_heads_first}),
    ("relative_multi_head_attention_joined_as_it_lies", "heads joined by a reshape alone",
     "opacus PR #825", "relative_multi_head_attention", "H > 1, N > 1",
     {"join": joined_as_it_lies}),
    ("transformer_xl_layer_joined_as_it_lies", "heads joined by a reshape alone",
     "opacus PR #825", "transformer_xl_layer", "H > 1, N > 1", {"join": joined_as_it_lies}),
    ("alibi_multi_head_attention_sequence_first", "the sequence in front of the batch",
     "speechbrain commit 345775511", "[B N F]", "B other than N",
     lambda **given: layers.alibi_multi_head_attention(**given).swapaxes(0, 1)),
    ("multi_head_attention_interleaved_heads", "columns dealt to the heads in turn",
     "this project", MERGE, "H > 1, D > 1", {"split": split_interleaved}),
    ("scaled_dot_product_attention_contiguous_inputs",
     "strided queries, keys and values read as contiguous", "pytorch #181133", STRIDES,
     "a transposed layout",
     lambda **given: attention.scaled_dot_product_attention(**misread(given, "query", "key",
      "value")), {"raw": True}),
    ("scaled_dot_product_attention_grad_contiguous_values", "strided values read as contiguous",
     "flash-attention commit 09aa3222", STRIDES, "values sliced from a packed array",
     lambda **given: gradients.scaled_dot_product_attention_grad(**misread(given, "value")),
     {"raw": True}),
    ("alibi_attention_grad_contiguous_output", "a strided d_output read as contiguous",
     "flash-attention commit 2423cca3", STRIDES, "d_output with a stride of 0",
     lambda **given: gradients.alibi_attention_grad(**misread(given, "d_output")), {"raw": True}),
    ("rel_shift_contiguous_input", "a strided array read as contiguous", "pytorch #163597",
     STRIDES, "a sliced or transposed layout",
     lambda x: attention.rel_shift(as_if_contiguous(x).astype(np.float64)), {"raw": True}),
    ("transformer_xl_score_contiguous_keys", "scores of packed keys read as contiguous",
     "flash-attention commit 09aa3222", STRIDES, "packed keys",
     lambda **given: attention.transformer_xl_score(**misread(given, "key")), {"raw": True}),
    ("transformer_xl_layer_query_value_key", "a joint projection split as query, value, key",
     "this project", "transformer_xl_layer, clause 1", "any", {"parts": query_value_key}),
    ("transformer_xl_layer_parts_in_heads", "a joint projection split head by head",
     "this project", "transformer_xl_layer, clause 1", "H > 1", {"parts": parts_in_heads}),
    ("relative_multi_head_attention_table_axes",
     "tables of one head's width read as one of all", "this project", "learned_relative_score",
     "H > 1, D > 1",
     where_given(layers.relative_multi_head_attention, parameters=of_all_heads)),
    ("multi_head_attention_weights_transposed", "weights transposed where N = M", "this project",
     "multi_head_attention, clause 4", "N = M > 1",
     with_outputs(layers.multi_head_attention, {1: lambda w, x: turned_where_square(w)})),
    ("multi_head_self_attention_weights_averaged", "weights averaged over the heads",
     "PyTorch, average_attn_weights", "multi_head_attention, clause 4", "any",
     with_outputs(layers.multi_head_self_attention, {1: lambda w, x: w.mean(axis=1)})),
    ("self_attention_square_projection", "a square projection without its transpose",
     "this project", "weights as in torch.nn.Linear", "K = F > 1",
     where_given(layers.self_attention, parameters=lambda own, x: own |
      {"w_query": turned_where_square(own["w_query"])})),
))  # fmt: skip
