"""
labml-nn as a backend: the very code that the source documents describe.

    attnverify run --backend examples/labml_backend.py

labml puts the sequence first and the heads last, and its masks are [N M B] with True = may attend:
this file turns axes and renames, nothing else. An attention without projections is labml's own
layer with its four linear maps taken out. labml-nn 0.5.1 wants labml < 0.5: its MultiHeadAttention
calls labml.tracker.debug, which 0.5 no longer has.
"""

from functools import cache

import torch
from labml_nn.transformers import alibi
from labml_nn.transformers.mha import MultiHeadAttention
from labml_nn.transformers.utils import subsequent_mask
from labml_nn.transformers.xl import relative_mha
from torch import nn
from torch.func import functional_call
from torch.nn.functional import pad

# A CPU that multiplies bfloat16 in hardware flushes subnormals, of its products and sums too.
FTZ = {"storage": "bfloat16_ftz", "acc": "float32_ftz"}
# labml's softmax runs over the second of four axes: PyTorch's CPU kernel for that keeps its exp in
# the dtype. In bfloat16 this is one rounding of 2^-8, as many ulps of float32; in float16 the range
# of underflow counts as well.
EXP = {"exp_ulps": 2**15, "block": 2**16}
EAGER = {"float64": {}, "float32": {}, "float16": {"softmax": "float16"}, "bfloat16": EXP | FTZ}
FLOAT32_SLOPES = EAGER | {"float64": {"bias": "float32"}}  # in every dtype
PRECISION = {
    "*": EAGER,
    "alibi_multi_head_attention": FLOAT32_SLOPES,
    "alibi_attention": {
        dtype: {"bias_form": "absolute", **fields} for dtype, fields in FLOAT32_SLOPES.items()
    },  # slope * (j + 1)
}


def shift_right(x):
    return relative_mha.shift_right(x.movedim((-2, -1), (0, 1))).movedim((0, 1), (-2, -1))


def causal_mask(N, M):
    if N != M:
        raise NotImplementedError("labml's causal mask is square")
    return subsequent_mask(N)[:, :, 0]


def get_slopes(n_heads):
    return alibi.get_slopes(n_heads)


def get_alibi_biases(n_heads, visible):
    return alibi.get_alibi_biases(n_heads, visible).permute(2, 0, 1)


def scaled_dot_product_attention(query, key, value, mask=None, keep=None, p=0.0):
    if keep is not None:
        raise NotImplementedError("labml draws its own dropout mask")
    if mask is not None and mask.is_floating_point():
        raise NotImplementedError("labml's masks are bool")
    layer = MultiHeadAttention(query.shape[1], query.shape[1] * query.shape[3], p)
    return without_projections(layer, query, key, value, sequence_first(mask))


def alibi_attention(query, key, value, visible=None):
    """The layer is square: queries that are missing in front are zero and cut off again."""
    N, M = query.shape[2], key.shape[2]
    if N > M:
        raise NotImplementedError("labml's ALiBi has a key for every query")
    mask = causal_mask(M, M).to(query.device)
    if visible is not None:
        mask = mask & pad(visible.expand(*visible.shape[:-2], N, M), (0, 0, M - N, 0), value=True)
    mask = sequence_first(mask)
    if mask.shape[2] > 1:
        raise NotImplementedError("labml's ALiBi wants one mask for the whole batch")
    layer = alibi.AlibiMultiHeadAttention(query.shape[1], query.shape[1] * query.shape[3], 0.0)
    return without_projections(layer, pad(query, (0, 0, M - N, 0)), key, value, mask)[:, :, M - N :]


def learned_relative_score(query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align):
    layer = relative_layer(query.shape[1], query.shape[3], len(key_pos_embeddings), align)
    for name, table in named_tables(key_pos_embeddings, key_pos_bias, query_pos_bias).items():
        delattr(layer, name)
        setattr(layer, name, table)
    scores = layer.get_scores(query.permute(2, 0, 1, 3), key.permute(2, 0, 1, 3)) * layer.scale
    return scores.permute(2, 3, 0, 1)


def learned_relative_attention(
    query, key, value, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible=None
):
    layer = relative_layer(query.shape[1], query.shape[3], len(key_pos_embeddings), align)
    tables = named_tables(key_pos_embeddings, key_pos_bias, query_pos_bias)
    return without_projections(layer, query, key, value, sequence_first(visible), tables)


def relative_multi_head_attention(query, key, value, parameters, num_heads, align, visible=None):
    layer = relative_layer(
        num_heads, query.shape[-1] // num_heads, len(parameters["key_pos_embeddings"]), align
    )
    return call(layer, parameters, query, key, value, sequence_first(visible))


def alibi_multi_head_attention(query, key, value, parameters, num_heads, visible):
    layer = alibi.AlibiMultiHeadAttention(num_heads, query.shape[-1], 0.0)
    return call(layer, parameters, query, key, value, sequence_first(visible))


def alibi_multi_head_attention_kept(query, key, value, parameters, num_heads, visible):
    """
    One layer lives on between calls, as in a model: it keeps the biases of the longest mask it has
    seen.
    """
    return call(
        kept_layer(num_heads, query.shape[-1]),
        parameters,
        query,
        key,
        value,
        sequence_first(visible),
    )


@cache
def kept_layer(num_heads, F):
    return alibi.AlibiMultiHeadAttention(num_heads, F, 0.0)


def relative_layer(H, D, table_length, align):
    if align != "end":
        raise NotImplementedError("labml-nn reads its tables end-aligned")
    with torch.device("meta"):
        layer = relative_mha.RelativeMultiHeadAttention(H, H * D, 0.0)
    layer.P = table_length // 2
    return layer


def named_tables(key_pos_embeddings, key_pos_bias, query_pos_bias):
    return {
        "key_pos_embeddings": key_pos_embeddings,
        "key_pos_bias": key_pos_bias,
        "query_pos_bias": query_pos_bias,
    }


def sequence_first(visible):
    """[N M] or [B 1 N M] to [N M B]."""
    if visible is None or visible.ndim == 2:
        return visible if visible is None else visible[:, :, None]
    if visible.shape[1] > 1:
        raise NotImplementedError("labml's mask is the same for every head")
    return visible[:, 0].permute(1, 2, 0)


def without_projections(layer, query, key, value, mask, parameters=None):
    H = query.shape[1]
    layer.query = layer.key = layer.value = nn.Unflatten(-1, (H, -1))
    layer.output = nn.Identity()
    query, key, value = (x.transpose(1, 2).flatten(2) for x in (query, key, value))
    return (
        call(layer, parameters or {}, query, key, value, mask)
        .unflatten(-1, (H, -1))
        .transpose(1, 2)
    )


def call(layer, parameters, query, key, value, mask):
    """The sequence first and back; a bias that is absent is zero."""
    if mask is not None and mask.shape[1] != key.shape[1]:
        raise NotImplementedError("labml's mask names every key")
    biases = {
        name: query.new_zeros(p.shape)
        for name, p in layer.named_parameters()
        if name.endswith(".bias")
    }
    inputs = {
        "query": query.transpose(0, 1),
        "key": key.transpose(0, 1),
        "value": value.transpose(0, 1),
        "mask": mask,
    }
    return functional_call(layer, biases | parameters, (), inputs, strict=True).transpose(0, 1)
