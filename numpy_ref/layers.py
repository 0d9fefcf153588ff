"""
Layers: projections as matrix products around the other chapters; narrow formats are rounded once,
at a layer's end.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from attnverify.contract.arguments import check_draw
from attnverify.contract.layers import (
    D_MULTI_HEAD,
    D_SELF,
    D_X,
    X,
    check_alibi,
    check_memory_gradients,
    check_multi_head,
    check_relative,
    check_self_attention,
    check_xl_layer,
    check_xl_stack,
)
from attnverify.contract.masks import check_layer_masks
from attnverify.contract.shapes import check

from .alibi import get_alibi_biases
from .arrays import ARRAYS
from .attention import Keep, Mask, mask_grad
from .hidden_keys import (
    HIDDEN,
    attended,
    attended_grad,
    dropped,
    hide,
    products_grad,
    sum_seen,
    weigh,
)
from .masks import merge_masks
from .memory import Mems, update_mems
from .projections import (
    Parameters,
    feed_forward,
    feed_forward_grad,
    heads,
    in_order,
    layer_norm,
    layer_norm_grad,
    linear,
    linear_grad,
    projections_grad,
    seen_alone,
    side_by_side,
)
from .relative import (
    Visible,
    attend_learned_relative,
    attend_learned_relative_grad,
    attend_transformer_xl,
    attend_transformer_xl_grad,
    sinusoidal_positions,
)
from .rounding import rounds_once

__all__ = [
    "alibi_multi_head_attention",
    "alibi_multi_head_attention_grad",
    "multi_head_attention",
    "multi_head_attention_grad",
    "multi_head_self_attention",
    "multi_head_self_attention_grad",
    "relative_multi_head_attention",
    "relative_multi_head_attention_grad",
    "self_attention",
    "self_attention_grad",
    "transformer_xl",
    "transformer_xl_grad",
    "transformer_xl_layer",
    "transformer_xl_layer_grad",
]


SELF = ("w_query", "w_key", "w_value")
LABML = ("query.linear", "key.linear", "value.linear", "output")
TABLES = ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")


@rounds_once
def self_attention(
    x: Float[ndarray, "B N F"],
    parameters: Parameters,
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[ndarray, "B N E"]:
    """
    See :func:`spec.layers.self_attention`.

    Three products, then the attention's two.
    """
    check_self_attention(ARRAYS, x, parameters, mask, keep, p)
    query, key, value = (x @ parameters[name].T for name in SELF)
    return attended(hide(query @ key.mT / sqrt(key.shape[-1]), mask), value, keep, p)


@rounds_once
def self_attention_grad(
    d_output: Float[ndarray, "B N E"],
    x: Float[ndarray, "B N F"],
    parameters: Parameters,
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    """
    See :func:`spec.layers.self_attention_grad`.

    The projections recomputed; each weight's gradient is one product over batch and positions.
    """
    at = check_self_attention(ARRAYS, x, parameters, mask, keep, p)
    check(ARRAYS, D_SELF, d_output, **at)
    query, key, value = (x @ parameters[name].T for name in SELF)
    root = sqrt(key.shape[-1])
    score = hide(query @ key.mT / root, mask)
    d_score, d_value = attended_grad(d_output, score, value, keep, p)
    d_query, d_key = products_grad(d_score / root, score == HIDDEN, query, key)
    d_x, d_weights = np.zeros_like(x), {}
    for name, d in zip(SELF, (d_query, d_key, d_value), strict=True):
        d_x += d @ parameters[name]
        d_weights[name] = d.reshape(-1, d.shape[-1]).T @ x.reshape(-1, at["F"])
    return d_x, {name: d_weights[name] for name in parameters}, *mask_grad(d_score, mask)


@rounds_once
def multi_head_attention(
    query: Float[ndarray, "B N F"],
    key: Float[ndarray, "B M F"],
    value: Float[ndarray, "B M F"],
    parameters: Parameters,
    num_heads: int,
    attn_mask: Bool[ndarray, "... N M"] | Float[ndarray, "... N M"] | None = None,
    key_padding_mask: Bool[ndarray, "B M"] | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Float[ndarray, "B N F"], Float[ndarray, "B H N M"]]:
    """
    See :func:`spec.layers.multi_head_attention`.

    All heads as one stack; the weights are computed once, for the output and for themselves.
    """
    at = check_multi_head(ARRAYS, (query, key, value), parameters, num_heads, keep, p)
    check_layer_masks(ARRAYS, attn_mask, key_padding_mask, *(at[size] for size in "BHNM"))
    mask = merge_masks(attn_mask, key_padding_mask, num_heads, query.dtype)
    q, k, v = (
        heads(linear(x, parameters, f"{name}_proj"), num_heads)
        for name, x in {"q": query, "k": key, "v": value}.items()
    )
    score = hide(q @ k.mT / sqrt(q.shape[-1]), mask)
    weights = dropped(weigh(score), keep, p)
    return linear(
        side_by_side(sum_seen(weights, score == -np.inf, v)), parameters, "out_proj"
    ), weights


@rounds_once
def multi_head_attention_grad(
    d_output: Float[ndarray, "B N F"],
    d_weights: Float[ndarray, "B H N M"],
    query: Float[ndarray, "B N F"],
    key: Float[ndarray, "B M F"],
    value: Float[ndarray, "B M F"],
    parameters: Parameters,
    num_heads: int,
    attn_mask: Bool[ndarray, "... N M"] | Float[ndarray, "... N M"] | None = None,
    key_padding_mask: Bool[ndarray, "B M"] | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    """
    See :func:`spec.layers.multi_head_attention_grad`.

    Projections, scores and weights once more, then product by product back; what arrives at the
    weights joins before the softmax.
    """
    at = check_multi_head(ARRAYS, (query, key, value), parameters, num_heads, keep, p)
    check(ARRAYS, D_MULTI_HEAD, d_output, d_weights, **at)
    check_layer_masks(ARRAYS, attn_mask, key_padding_mask, *(at[size] for size in "BHNM"))
    mask = merge_masks(attn_mask, key_padding_mask, num_heads, query.dtype)
    inputs = {"q_proj": query, "k_proj": key, "v_proj": value}
    q, k, v = (heads(linear(x, parameters, name), num_heads) for name, x in inputs.items())
    root = sqrt(q.shape[-1])
    score = hide(q @ k.mT / root, mask)
    hidden = score == HIDDEN
    d_attended, d_parameters = linear_grad(
        d_output, side_by_side(attended(score, v, keep, p)), parameters, "out_proj"
    )
    d_score, d_v = attended_grad(heads(d_attended, num_heads), score, v, keep, p, d_weights)
    d_q, d_k = products_grad(d_score / root, hidden, q, k)
    xs = query, seen_alone(key, hidden), seen_alone(value, hidden)
    d_inputs, grads = projections_grad((d_q, d_k, d_v), xs, parameters, tuple(inputs))
    d_parameters |= grads
    if attn_mask is not None and attn_mask.ndim == 3:
        d_score = d_score.reshape(attn_mask.shape)
    return *d_inputs, in_order(d_parameters, parameters), *mask_grad(d_score, attn_mask)


@rounds_once
def multi_head_self_attention(
    x: Float[ndarray, "B N F"],
    parameters: Parameters,
    num_heads: int,
    attn_mask: Bool[ndarray, "... N N"] | Float[ndarray, "... N N"] | None = None,
    key_padding_mask: Bool[ndarray, "B N"] | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Float[ndarray, "B N F"], Float[ndarray, "B H N N"]]:
    """
    See :func:`spec.layers.multi_head_self_attention`.

    :func:`multi_head_attention` with x three times.
    """
    check(ARRAYS, X, x)
    return multi_head_attention(
        x, x, x, parameters, num_heads, attn_mask, key_padding_mask, keep, p
    )


@rounds_once
def multi_head_self_attention_grad(
    d_output: Float[ndarray, "B N F"],
    d_weights: Float[ndarray, "B H N N"],
    x: Float[ndarray, "B N F"],
    parameters: Parameters,
    num_heads: int,
    attn_mask: Bool[ndarray, "... N N"] | Float[ndarray, "... N N"] | None = None,
    key_padding_mask: Bool[ndarray, "B N"] | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    """
    See :func:`spec.layers.multi_head_self_attention_grad`.

    The three gradients of :func:`multi_head_attention_grad` added up.
    """
    check(ARRAYS, X, x)
    d_query, d_key, d_value, *rest = multi_head_attention_grad(
        d_output, d_weights, x, x, x, parameters, num_heads, attn_mask, key_padding_mask, keep, p
    )
    return d_query + d_key + d_value, *rest


@rounds_once
def relative_multi_head_attention(
    query: Float[ndarray, "B N F"],
    key: Float[ndarray, "B M F"],
    value: Float[ndarray, "B M F"],
    parameters: Parameters,
    num_heads: int,
    align: str,
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[ndarray, "B N F"]:
    """
    See :func:`spec.layers.relative_multi_head_attention`.

    Projections around :func:`numpy_ref.relative.learned_relative_attention`.
    """
    check_relative(ARRAYS, (query, key, value), parameters, num_heads, keep, p)
    q, k, v = labml_projections(query, key, value, parameters, num_heads)
    embeddings, bias, query_bias = (parameters[name] for name in TABLES)
    attended_bhnd = attend_learned_relative(
        q, k, v, embeddings, bias, query_bias, align, visible, keep, p
    )
    return linear(side_by_side(attended_bhnd), parameters, "output")


def labml_projections(
    query: ndarray, key: ndarray, value: ndarray, parameters: Parameters, H: int
) -> list[ndarray]:
    inputs = zip(LABML, (query, key, value), strict=False)
    return [heads(linear(x, parameters, name), H) for name, x in inputs]


@rounds_once
def relative_multi_head_attention_grad(
    d_output: Float[ndarray, "B N F"],
    query: Float[ndarray, "B N F"],
    key: Float[ndarray, "B M F"],
    value: Float[ndarray, "B M F"],
    parameters: Parameters,
    num_heads: int,
    align: str,
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    """
    See :func:`spec.layers.relative_multi_head_attention_grad`.

    Projections around :func:`numpy_ref.relative.learned_relative_attention_grad`.
    """
    at = check_relative(ARRAYS, (query, key, value), parameters, num_heads, keep, p)
    check(ARRAYS, D_X, d_output, **at)
    q, k, v = labml_projections(query, key, value, parameters, num_heads)
    tables = (parameters[name] for name in TABLES)
    terms: tuple[Any, ...] = q, k, v, *tables, align, visible, keep, p
    attended_bhnd = attend_learned_relative(*terms)
    d_attended, d_parameters = linear_grad(
        d_output, side_by_side(attended_bhnd), parameters, "output"
    )
    *d_heads, d_table, d_bias, d_query_bias = attend_learned_relative_grad(
        heads(d_attended, num_heads), *terms
    )
    d_parameters |= dict(zip(TABLES, (d_table, d_bias, d_query_bias), strict=True))
    d_inputs, grads = labml_grad(d_heads, query, key, value, parameters, visible)
    return *d_inputs, in_order(d_parameters | grads, parameters)


def labml_grad(
    d_heads: Sequence[Float[ndarray, "B H N D"]],
    query: ndarray,
    key: ndarray,
    value: ndarray,
    parameters: Parameters,
    visible: Visible,
) -> tuple[list[ndarray], dict[str, ndarray]]:
    """The gradients by query, key and value and by their projections, from those by their heads."""
    (B, H, N, _), M = d_heads[0].shape, key.shape[1]
    hidden = np.broadcast_to(False if visible is None else ~visible, (B, H, N, M))
    inputs = query, seen_alone(key, hidden), seen_alone(value, hidden)
    return projections_grad(d_heads, inputs, parameters, LABML[:3])


@rounds_once
def alibi_multi_head_attention(
    query: Float[ndarray, "B N F"],
    key: Float[ndarray, "B N F"],
    value: Float[ndarray, "B N F"],
    parameters: Parameters,
    num_heads: int,
    visible: Bool[ndarray, "N N"],
    keep: Keep = None,
    p: float = 0.0,
) -> Float[ndarray, "B N F"]:
    """
    See :func:`spec.layers.alibi_multi_head_attention`.

    Projections around one stacked attention; the biases are those of this call's mask.
    """
    check_alibi(ARRAYS, (query, key, value), parameters, num_heads, visible, keep, p)
    biases = get_alibi_biases(num_heads, visible, query.dtype)
    q, k, v = labml_projections(query, key, value, parameters, num_heads)
    score = hide(q @ k.mT / sqrt(q.shape[-1]) + biases, visible)
    return linear(side_by_side(attended(score, v, keep, p)), parameters, "output")


@rounds_once
def alibi_multi_head_attention_grad(
    d_output: Float[ndarray, "B N F"],
    query: Float[ndarray, "B N F"],
    key: Float[ndarray, "B N F"],
    value: Float[ndarray, "B N F"],
    parameters: Parameters,
    num_heads: int,
    visible: Bool[ndarray, "N N"],
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    """
    See :func:`spec.layers.alibi_multi_head_attention_grad`.

    Projections around one stacked attention and back; the biases have no gradient.
    """
    at = check_alibi(ARRAYS, (query, key, value), parameters, num_heads, visible, keep, p)
    check(ARRAYS, D_X, d_output, **at)
    biases = get_alibi_biases(num_heads, visible, query.dtype)
    q, k, v = labml_projections(query, key, value, parameters, num_heads)
    root = sqrt(q.shape[-1])
    score = hide(q @ k.mT / root + biases, visible)
    d_attended, d_parameters = linear_grad(
        d_output, side_by_side(attended(score, v, keep, p)), parameters, "output"
    )
    d_score, d_v = attended_grad(heads(d_attended, num_heads), score, v, keep, p)
    d_q, d_k = products_grad(d_score / root, score == HIDDEN, q, k)
    d_inputs, grads = labml_grad((d_q, d_k, d_v), query, key, value, parameters, visible)
    return *d_inputs, in_order(d_parameters | grads, parameters)


@rounds_once
def transformer_xl_layer(
    x: Float[ndarray, "B N F"],
    position: Float[ndarray, "M F"],
    parameters: Parameters,
    num_heads: int,
    mem: Float[ndarray, "B S F"] | None = None,
    visible: Visible = None,
    eps: float = 1e-5,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[ndarray, "B N F"]:
    """
    See :func:`spec.layers.transformer_xl_layer`.

    One product for queries, keys and values; the norm takes two passes.
    """
    at = check_xl_layer(ARRAYS, x, position, parameters, num_heads, mem, eps)
    keys = x if mem is None else np.concatenate([mem, x], axis=1)
    q, k, v = (
        heads(part, num_heads) for part in np.split(linear(keys, parameters, "qkv_net"), 3, axis=-1)
    )
    r = heads(linear(position, parameters, "r_net"), num_heads)
    attended_bhnd = attend_transformer_xl(
        q[:, :, -at["N"] :], k, v, r, parameters["u"], parameters["v"], visible, keep, p
    )
    y = x + linear(side_by_side(attended_bhnd), parameters, "o_net")
    norm = parameters["layer_norm.weight"], parameters.get("layer_norm.bias"), eps
    return feed_forward(layer_norm(y, *norm), parameters, eps)


@rounds_once
def transformer_xl_layer_grad(
    d_output: Float[ndarray, "B N F"],
    x: Float[ndarray, "B N F"],
    position: Float[ndarray, "M F"],
    parameters: Parameters,
    num_heads: int,
    mem: Float[ndarray, "B S F"] | None = None,
    visible: Visible = None,
    eps: float = 1e-5,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    """
    See :func:`spec.layers.transformer_xl_layer_grad`.

    Forward once more; the three parts of qkv_net have a gradient each, and are joined.
    """
    at = check_xl_layer(ARRAYS, x, position, parameters, num_heads, mem, eps)
    check(ARRAYS, D_X, d_output, **at)
    B, H, N, M = (at[size] for size in "BHNM")
    whole = x if mem is None else np.concatenate([mem, x], axis=1)
    q, k, v = (heads(part, H) for part in np.split(linear(whole, parameters, "qkv_net"), 3, -1))
    r = heads(linear(position, parameters, "r_net"), H)
    row_biases = parameters["u"], parameters["v"]
    terms: tuple[Any, ...] = q[:, :, -N:], k, v, r, *row_biases, visible, keep, p
    heard = side_by_side(attend_transformer_xl(*terms))
    y = x + linear(heard, parameters, "o_net")
    norm = parameters["layer_norm.weight"], parameters.get("layer_norm.bias"), eps
    d_normed, d_ff = feed_forward_grad(d_output, layer_norm(y, *norm), parameters, eps)
    d_y, d_parameters = layer_norm_grad(d_normed, y, parameters, eps)
    d_heard, grads = linear_grad(d_y, heard, parameters, "o_net")
    *d_heads, d_r, d_u, d_v = attend_transformer_xl_grad(heads(d_heard, H), *terms)
    d_parameters |= grads | d_ff | {"u": d_u, "v": d_v}
    hidden = ~(np.tri(N, M, M - N, dtype=bool) & (True if visible is None else visible))
    keys = seen_alone(whole, np.broadcast_to(hidden, (B, H, N, M)))
    d_parts, grads = projections_grad(d_heads, (x, keys, keys), thirds(parameters), THIRDS)
    for part in ("weight", "bias"):
        if f"{THIRDS[0]}.{part}" in grads:
            found = [grads[f"{name}.{part}"] for name in THIRDS]
            d_parameters[f"qkv_net.{part}"] = np.concatenate(found)
    d_position, grads = linear_grad(side_by_side(d_r[None])[0], position, parameters, "r_net")
    d_x = d_y + d_parts[0] + (d_parts[1] + d_parts[2])[:, M - N :]
    d_mem = () if mem is None else (np.zeros_like(mem),)
    return d_x, d_position, in_order(d_parameters | grads, parameters), *d_mem


THIRDS = ("q", "k", "v")


def thirds(parameters: Parameters) -> dict[str, ndarray]:
    """The projection qkv_net as three."""
    return {
        f"{name}.{part}": x
        for part in ("weight", "bias")
        if parameters.get(f"qkv_net.{part}") is not None
        for name, x in zip(THIRDS, np.split(parameters[f"qkv_net.{part}"], 3), strict=True)
    }


@rounds_once
def transformer_xl(
    x: Float[ndarray, "B N F"],
    parameters: Sequence[Parameters],
    num_heads: int,
    mems: Mems,
    mem_len: int,
    eps: float = 1e-5,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Float[ndarray, "B N F"], Mems]:
    """
    See :func:`spec.layers.transformer_xl`.

    Layer after layer in the wide format; hidden states and memory are rounded together, at the end.
    """
    at = check_xl_stack(ARRAYS, x, parameters, mems)
    position = sinusoidal_positions(at["M"], at["F"], x.dtype)
    check_draw(ARRAYS, keep, p, (len(parameters), at["B"], num_heads, at["N"], at["M"]))
    hids, draws = [x], each_draw(keep, len(parameters))
    for layer, weights in enumerate(parameters):
        mem = None if mems is None else mems[layer]
        inputs = hids[-1], position, weights, num_heads, mem
        hids.append(transformer_xl_layer(*inputs, eps=eps, keep=draws[layer], p=p))
    return hids[-1], update_mems(hids[:-1], mems, mem_len)


@rounds_once
def transformer_xl_grad(
    d_output: Float[ndarray, "B N F"],
    d_new_mems: Mems,
    x: Float[ndarray, "B N F"],
    parameters: Sequence[Parameters],
    num_heads: int,
    mems: Mems,
    mem_len: int,
    eps: float = 1e-5,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    """
    See :func:`spec.layers.transformer_xl_grad`.

    Layer after layer forward, and back through each of them from its input; wide in between.
    """
    _, new_mems = transformer_xl(x, parameters, num_heads, mems, mem_len, eps, keep, p)
    at = check_xl_stack(ARRAYS, x, parameters, mems)
    check(ARRAYS, D_X, d_output, **at)
    check_memory_gradients(ARRAYS, d_new_mems, new_mems)
    position = sinusoidal_positions(at["M"], at["F"], x.dtype)
    inputs: list[tuple[Any, ...]] = []
    hidden, draws = x, each_draw(keep, len(parameters))
    for layer, weights in enumerate(parameters):
        mem = None if mems is None else mems[layer]
        inputs.append((hidden, position, weights, num_heads, mem, None, eps, draws[layer], p))
        hidden = transformer_xl_layer(*inputs[-1])
    d_hidden, d_parameters = d_output, []
    for given in reversed(inputs):
        d_hidden, _, d_weights, *_ = transformer_xl_layer_grad(d_hidden, *given)
        d_parameters.append(d_weights)
    d_mems = () if mems is None else ([np.zeros_like(mem) for mem in mems],)
    return d_hidden, d_parameters[::-1], *d_mems


def each_draw(keep: Keep, L: int) -> list[Keep]:
    """The draw of each layer, from one [L B H N M] or what broadcasts to it."""
    return (
        [keep] * L
        if keep is None or keep.ndim < 5
        else list(np.broadcast_to(keep, (L, *keep.shape[1:])))
    )
