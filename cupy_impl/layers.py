"""Layers: projections around the attentions, wide from the first product to the last."""

from collections.abc import Sequence
from typing import Any

import cupy
from jaxtyping import Bool, Float

from attnverify.contract.arguments import check_draw, check_even
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

from .alibi import biases
from .arrays import ARRAYS, Array, ieee, narrow, wide
from .attention import (
    Keep,
    Mask,
    attend,
    heads_grad,
    hide,
    kept,
    mask_grad,
    normalised,
    present,
    seen,
    sum_seen,
)
from .masks import causal, merge_masks
from .memory import Mems, update_mems, zeros_like
from .projections import (
    Parameters,
    affine,
    feed_forward,
    feed_forward_grad,
    heads,
    inputs_grad,
    layer_norm,
    layer_norm_grad,
    linear,
    linear_grad,
    merged,
    narrowed,
    widened,
)
from .relative import (
    Visible,
    attend_learned_relative,
    attend_learned_relative_grad,
    attend_transformer_xl,
    attend_transformer_xl_grad,
    sinusoids,
)
from .scores import over_rows, scaled_products

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
LABML = ("query.linear", "key.linear", "value.linear")


@ieee
def self_attention(
    x: Float[Array, "B N F"],
    parameters: Parameters,
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Array, "B N E"]:
    """
    See :func:`spec.layers.self_attention`.

    Three products, then the attention of one head.
    """
    check_self_attention(ARRAYS, x, parameters, mask, keep, p)
    weights, dtype, (x, mask) = widened(parameters), x.dtype, wide(x, mask)
    query, key, value = (x @ weights[name].T for name in SELF)
    return narrow(attend(hide(scaled_products(query, key), mask), value, keep, p), dtype)


@ieee
def self_attention_grad(
    d_output: Float[Array, "B N E"],
    x: Float[Array, "B N F"],
    parameters: Parameters,
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    """
    See :func:`spec.layers.self_attention_grad`.

    The projections computed anew; a weight's gradient is one product over batch and positions.
    """
    size = check_self_attention(ARRAYS, x, parameters, mask, keep, p)
    check(ARRAYS, D_SELF, d_output, **size)
    weights, (d_output, wide_x, wide_mask) = widened(parameters), wide(d_output, x, mask)
    query, key, value = (wide_x @ weights[name].T for name in SELF)
    score = hide(scaled_products(query, key), wide_mask)
    d_score, *grads = heads_grad(d_output, query, key, value, score, keep, p)
    projected = dict(zip(SELF, grads, strict=True))
    d_x = sum(d @ weights[name] for name, d in projected.items())
    d_parameters = {
        name: narrow(over_rows(projected[name], wide_x), weight.dtype)
        for name, weight in parameters.items()
    }
    return narrow(d_x, x.dtype), d_parameters, *mask_grad(d_score, mask)


@ieee
def multi_head_attention(
    query: Float[Array, "B N F"],
    key: Float[Array, "B M F"],
    value: Float[Array, "B M F"],
    parameters: Parameters,
    num_heads: int,
    attn_mask: Bool[Array, "... N M"] | Float[Array, "... N M"] | None = None,
    key_padding_mask: Bool[Array, "B M"] | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Float[Array, "B N F"], Float[Array, "B H N M"]]:
    """
    See :func:`spec.layers.multi_head_attention`.

    The weights are computed once, for the output and as the second result.
    """
    size = check_multi_head(ARRAYS, (query, key, value), parameters, num_heads, keep, p)
    check_layer_masks(ARRAYS, attn_mask, key_padding_mask, *(size[letter] for letter in "BHNM"))
    parameters, mask, dtype = widened(parameters), None, query.dtype
    if attn_mask is not None or key_padding_mask is not None:
        mask = merge_masks(attn_mask, key_padding_mask, num_heads)
    query, key, value, mask = wide(query, key, value, mask)
    q, k, v = (
        heads(linear(x, parameters, name), num_heads)
        for name, x in (("q_proj", query), ("k_proj", key), ("v_proj", value))
    )
    score = hide(scaled_products(q, k), mask)
    pairs = seen(score)
    weights = kept(normalised(score, pairs), keep, p)
    output = linear(merged(sum_seen(weights, pairs, v)), parameters, "out_proj")
    return narrow(output, dtype), narrow(weights, dtype)


@ieee
def multi_head_attention_grad(
    d_output: Float[Array, "B N F"],
    d_weights: Float[Array, "B H N M"],
    query: Float[Array, "B N F"],
    key: Float[Array, "B M F"],
    value: Float[Array, "B M F"],
    parameters: Parameters,
    num_heads: int,
    attn_mask: Bool[Array, "... N M"] | Float[Array, "... N M"] | None = None,
    key_padding_mask: Bool[Array, "B M"] | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    """
    See :func:`spec.layers.multi_head_attention_grad`.

    Forward once more, wide throughout; a parameter's gradient is one product over batch and
    positions.
    """
    inputs = query, key, value
    size = check_multi_head(ARRAYS, inputs, parameters, num_heads, keep, p)
    check(ARRAYS, D_MULTI_HEAD, d_output, d_weights, **size)
    check_layer_masks(ARRAYS, attn_mask, key_padding_mask, *(size[letter] for letter in "BHNM"))
    weights, mask = widened(parameters), None
    if attn_mask is not None or key_padding_mask is not None:
        mask = merge_masks(attn_mask, key_padding_mask, num_heads)
    d_output, d_weights, *wides, mask = wide(d_output, d_weights, *inputs, mask)
    names = "q_proj", "k_proj", "v_proj"
    q, k, v = (
        heads(linear(x, weights, name), num_heads) for name, x in zip(names, wides, strict=True)
    )
    score = hide(scaled_products(q, k), mask)
    is_seen = seen(score).any(axis=(1, 2))
    d_attended, d_parameters = linear_grad(
        d_output, merged(attend(score, v, keep, p)), weights, "out_proj"
    )
    d_score, *d_heads = heads_grad(heads(d_attended, num_heads), q, k, v, score, keep, p, d_weights)
    d_inputs, grads = inputs_grad(d_heads, inputs, weights, names, is_seen)
    d_parameters |= grads
    if attn_mask is not None and attn_mask.ndim == 3:
        d_score = d_score.reshape(attn_mask.shape)
    return *d_inputs, narrowed(d_parameters, parameters), *mask_grad(d_score, attn_mask)


def multi_head_self_attention(
    x: Float[Array, "B N F"],
    parameters: Parameters,
    num_heads: int,
    attn_mask: Bool[Array, "... N N"] | Float[Array, "... N N"] | None = None,
    key_padding_mask: Bool[Array, "B N"] | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Float[Array, "B N F"], Float[Array, "B H N N"]]:
    """
    See :func:`spec.layers.multi_head_self_attention`.

    It is :func:`multi_head_attention` of x; the three projections are not packed into one.
    """
    check(ARRAYS, X, x)
    return multi_head_attention(
        x, x, x, parameters, num_heads, attn_mask, key_padding_mask, keep, p
    )


@ieee
def multi_head_self_attention_grad(
    d_output: Float[Array, "B N F"],
    d_weights: Float[Array, "B H N N"],
    x: Float[Array, "B N F"],
    parameters: Parameters,
    num_heads: int,
    attn_mask: Bool[Array, "... N N"] | Float[Array, "... N N"] | None = None,
    key_padding_mask: Bool[Array, "B N"] | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    """
    See :func:`spec.layers.multi_head_self_attention_grad`.

    The three gradients of :func:`multi_head_attention_grad` are added while they are wide.
    """
    check(ARRAYS, X, x)
    (wide_x,) = wide(x)
    d_query, d_key, d_value, *rest = multi_head_attention_grad(
        d_output,
        d_weights,
        wide_x,
        wide_x,
        wide_x,
        parameters,
        num_heads,
        attn_mask,
        key_padding_mask,
        keep,
        p,
    )
    return narrow(d_query + d_key + d_value, x.dtype), *rest


@ieee
def relative_multi_head_attention(
    query: Float[Array, "B N F"],
    key: Float[Array, "B M F"],
    value: Float[Array, "B M F"],
    parameters: Parameters,
    num_heads: int,
    align: str,
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Array, "B N F"]:
    """
    See :func:`spec.layers.relative_multi_head_attention`.

    The attention is :func:`cupy_impl.relative.learned_relative_attention` on widened arrays.
    """
    check_relative(ARRAYS, (query, key, value), parameters, num_heads, keep, p)
    parameters, dtype = widened(parameters), query.dtype
    q, k, v = projected(query, key, value, parameters, num_heads)
    names = ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")
    embeddings, bias, query_bias = (parameters[name] for name in names)
    out = attend_learned_relative(q, k, v, embeddings, bias, query_bias, align, visible, keep, p)
    return narrow(linear(merged(out), parameters, "output"), dtype)


def projected(
    query: Array, key: Array, value: Array, parameters: Parameters, H: int
) -> tuple[Array, ...]:
    """Query, key and value per head, by labml's names."""
    return tuple(
        heads(linear(x, parameters, name), H)
        for name, x in zip(LABML, wide(query, key, value), strict=True)
    )


@ieee
def relative_multi_head_attention_grad(
    d_output: Float[Array, "B N F"],
    query: Float[Array, "B N F"],
    key: Float[Array, "B M F"],
    value: Float[Array, "B M F"],
    parameters: Parameters,
    num_heads: int,
    align: str,
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    """
    See :func:`spec.layers.relative_multi_head_attention_grad`.

    Around :func:`cupy_impl.relative.learned_relative_attention_grad`, forward once more.
    """
    inputs = query, key, value
    size = check_relative(ARRAYS, inputs, parameters, num_heads, keep, p)
    check(ARRAYS, D_X, d_output, **size)
    weights = widened(parameters)
    names = ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")
    q_k_v, tables = projected(*inputs, weights, num_heads), [weights[name] for name in names]
    terms: tuple[Any, ...] = *q_k_v, *tables, align, visible, keep, p
    heard = merged(attend_learned_relative(*terms))
    (d_output,) = wide(d_output)
    d_attended, d_parameters = linear_grad(d_output, heard, weights, "output")
    *d_heads, d_table, d_bias, d_query_bias = attend_learned_relative_grad(
        heads(d_attended, num_heads), *terms
    )
    d_parameters |= dict(zip(names, (d_table, d_bias, d_query_bias), strict=True))
    is_seen = None
    if visible is not None:
        xp, shape = cupy.get_array_module(query), (size["B"], num_heads, size["N"], size["M"])
        is_seen = xp.broadcast_to(visible, shape).any(axis=(1, 2))
    d_inputs, grads = inputs_grad(d_heads, inputs, weights, LABML, is_seen)
    return *d_inputs, narrowed(d_parameters | grads, parameters)


@ieee
def alibi_multi_head_attention(
    query: Float[Array, "B N F"],
    key: Float[Array, "B N F"],
    value: Float[Array, "B N F"],
    parameters: Parameters,
    num_heads: int,
    visible: Bool[Array, "N N"],
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Array, "B N F"]:
    """
    See :func:`spec.layers.alibi_multi_head_attention`.

    The biases are computed anew in every call and never cached.
    """
    check_alibi(ARRAYS, (query, key, value), parameters, num_heads, visible, keep, p)
    parameters, dtype = widened(parameters), query.dtype
    q, k, v = projected(query, key, value, parameters, num_heads)
    score = scaled_products(q, k)
    score += biases(num_heads, visible, score.dtype)
    heard = attend(hide(score, visible), v, keep, p)
    return narrow(linear(merged(heard), parameters, "output"), dtype)


@ieee
def alibi_multi_head_attention_grad(
    d_output: Float[Array, "B N F"],
    query: Float[Array, "B N F"],
    key: Float[Array, "B N F"],
    value: Float[Array, "B N F"],
    parameters: Parameters,
    num_heads: int,
    visible: Bool[Array, "N N"],
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    """
    See :func:`spec.layers.alibi_multi_head_attention_grad`.

    Forward once more; the biases are added and have no gradient.
    """
    inputs = query, key, value
    size = check_alibi(ARRAYS, inputs, parameters, num_heads, visible, keep, p)
    check(ARRAYS, D_X, d_output, **size)
    weights = widened(parameters)
    q, k, v = projected(*inputs, weights, num_heads)
    score = scaled_products(q, k)
    score += biases(num_heads, visible, score.dtype)
    score = hide(score, visible)
    (d_output,) = wide(d_output)
    heard = merged(attend(score, v, keep, p))
    d_attended, d_parameters = linear_grad(d_output, heard, weights, "output")
    _, *d_heads = heads_grad(heads(d_attended, num_heads), q, k, v, score, keep, p)
    is_seen = cupy.get_array_module(query).broadcast_to(visible.any(axis=0), key.shape[:2])
    d_inputs, grads = inputs_grad(d_heads, inputs, weights, LABML, is_seen)
    return *d_inputs, narrowed(d_parameters | grads, parameters)


@ieee
def transformer_xl_layer(
    x: Float[Array, "B N F"],
    position: Float[Array, "M F"],
    parameters: Parameters,
    num_heads: int,
    mem: Float[Array, "B S F"] | None = None,
    visible: Visible = None,
    eps: float = 1e-5,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Array, "B N F"]:
    """
    See :func:`spec.layers.transformer_xl_layer`.

    The memory is projected to keys and values only.
    """
    F = check_xl_layer(ARRAYS, x, position, parameters, num_heads, mem, eps)["F"]
    parameters, dtype = widened(parameters), x.dtype
    x, mem, position = wide(x, mem, position)
    keys = x if mem is None else cupy.get_array_module(x).concatenate([mem, x], axis=1)
    weight, bias = parameters["qkv_net.weight"], parameters.get("qkv_net.bias")
    q = affine(x, weight[:F], None if bias is None else bias[:F])
    kv = affine(keys, weight[F:], None if bias is None else bias[F:])
    q, k, v, r = (
        heads(part, num_heads)
        for part in (q, kv[..., :F], kv[..., F:], linear(position, parameters, "r_net"))
    )
    attended = attend_transformer_xl(q, k, v, r, parameters["u"], parameters["v"], visible, keep, p)
    y = x + linear(merged(attended), parameters, "o_net")
    y = layer_norm(y, parameters["layer_norm.weight"], parameters.get("layer_norm.bias"), eps)
    return narrow(feed_forward(y, parameters, eps) if "ff_in.weight" in parameters else y, dtype)


@ieee
def transformer_xl_layer_grad(
    d_output: Float[Array, "B N F"],
    x: Float[Array, "B N F"],
    position: Float[Array, "M F"],
    parameters: Parameters,
    num_heads: int,
    mem: Float[Array, "B S F"] | None = None,
    visible: Visible = None,
    eps: float = 1e-5,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Any, ...]:
    """
    See :func:`spec.layers.transformer_xl_layer_grad`.

    Forward once more; keys and values have one product with the memory in it, queries one without.
    """
    size = check_xl_layer(ARRAYS, x, position, parameters, num_heads, mem, eps)
    check(ARRAYS, D_X, d_output, **size)
    F, M, dtypes = size["F"], size["M"], (x.dtype, position.dtype)
    weights = widened(parameters)
    d_mem = () if mem is None else tuple(zeros_like([mem]))
    d_output, x, mem, position = wide(d_output, x, mem, position)
    xp = cupy.get_array_module(x)
    whole, net = x if mem is None else xp.concatenate([mem, x], axis=1), parted(weights)
    r, kv = linear(position, weights, "r_net"), linear(whole, net, "kv")
    q, k, v, r = (heads(y, num_heads) for y in (linear(x, net, "q"), kv[..., :F], kv[..., F:], r))
    terms: tuple[Any, ...] = q, k, v, r, weights["u"], weights["v"], visible, keep, p
    heard = merged(attend_transformer_xl(*terms))
    z = x + linear(heard, weights, "o_net")
    d_normed, d_ff = d_output, dict[str, Array]()
    if "ff_in.weight" in weights:
        norm = weights["layer_norm.weight"], weights.get("layer_norm.bias"), eps
        d_normed, d_ff = feed_forward_grad(d_output, layer_norm(z, *norm), weights, eps)
    d_z, d_parameters = layer_norm_grad(d_normed, z, weights, eps)
    d_heard, grads = linear_grad(d_z, heard, weights, "o_net")
    d_q, d_k, d_v, d_r, d_u, d_bias = attend_transformer_xl_grad(heads(d_heard, num_heads), *terms)
    d_parameters |= grads | d_ff | {"u": d_u, "v": d_bias}
    d_position, grads = linear_grad(merged(d_r[None])[0], position, weights, "r_net")
    pairs = causal(xp, size["N"], M, visible)
    is_seen = xp.broadcast_to(pairs, (len(x), num_heads, *pairs.shape[-2:])).any(axis=(1, 2))
    d_x, d_net = linear_grad(merged(d_q), x, net, "q")
    d_kv = xp.concatenate([merged(d_k), merged(d_v)], axis=-1)
    d_whole, d_kv_net = linear_grad(d_kv, present(whole, is_seen), net, "kv")
    d_parameters |= grads | joined(xp, d_net | d_kv_net)
    d_x = d_z + d_x + d_whole[:, M - size["N"] :]
    d_inputs = (narrow(d, dtype) for d, dtype in zip((d_x, d_position), dtypes, strict=True))
    return *d_inputs, narrowed(d_parameters, parameters), *d_mem


def parted(parameters: Parameters) -> dict[str, Array]:
    """The projection qkv_net as one of queries and one of keys and values."""
    F = parameters["qkv_net.weight"].shape[-1]
    return {
        f"{name}.{part}": parameters[f"qkv_net.{part}"][rows]
        for name, rows in (("q", slice(F)), ("kv", slice(F, None)))
        for part in ("weight", "bias")
        if parameters.get(f"qkv_net.{part}") is not None
    }


def joined(xp: Any, net: Parameters) -> dict[str, Array]:
    """The parts of :func:`parted` as one projection again."""
    return {
        f"qkv_net.{part}": xp.concatenate([net[f"q.{part}"], net[f"kv.{part}"]])
        for part in ("weight", "bias")
        if f"q.{part}" in net
    }


@ieee
def transformer_xl(
    x: Float[Array, "B N F"],
    parameters: Sequence[Parameters],
    num_heads: int,
    mems: Mems,
    mem_len: int,
    eps: float = 1e-5,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Float[Array, "B N F"], Mems]:
    """
    See :func:`spec.layers.transformer_xl`.

    Between the layers the numbers stay wide; what the memory keeps is rounded.
    """
    size, dtype = check_xl_stack(ARRAYS, x, parameters, mems), x.dtype
    check_even(size["F"])
    check_draw(ARRAYS, keep, p, (len(parameters), size["B"], num_heads, size["N"], size["M"]))
    (hidden,), hids = wide(x), []
    position = sinusoids(cupy.get_array_module(x), size["M"], size["F"]).astype(hidden.dtype)
    for layer, weights in enumerate(parameters):
        hids.append(x if layer == 0 else narrow(hidden, dtype))
        mem = None if mems is None else mems[layer]
        draw = keep if keep is None or keep.ndim < 5 else keep[layer % len(keep)]
        inputs = hidden, position, weights, num_heads, mem
        hidden = transformer_xl_layer(*inputs, eps=eps, keep=draw, p=p)
    return narrow(hidden, dtype), update_mems(hids, mems, mem_len)


@ieee
def transformer_xl_grad(
    d_output: Float[Array, "B N F"],
    d_new_mems: Mems,
    x: Float[Array, "B N F"],
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

    What goes from layer to layer stays wide, in both directions.
    """
    _, new_mems = transformer_xl(x, parameters, num_heads, mems, mem_len, eps, keep, p)
    size = check_xl_stack(ARRAYS, x, parameters, mems)
    check(ARRAYS, D_X, d_output, **size)
    check_memory_gradients(ARRAYS, d_new_mems, new_mems)
    dtype, (hidden, d_hidden) = x.dtype, wide(x, d_output)
    position = sinusoids(cupy.get_array_module(x), size["M"], size["F"]).astype(hidden.dtype)
    given: list[tuple[Any, ...]] = []
    for layer, weights in enumerate(parameters):
        mem = None if mems is None else wide(mems[layer])[0]
        draw = keep if keep is None or keep.ndim < 5 else keep[layer % len(keep)]
        given.append((hidden, position, weights, num_heads, mem, None, eps, draw, p))
        hidden = transformer_xl_layer(*given[-1])
    d_parameters: list[dict[str, Array]] = []
    for inputs in reversed(given):
        d_hidden, _, d_weights, *_ = transformer_xl_layer_grad(d_hidden, *inputs)
        d_parameters.insert(0, d_weights)
    d_mems = () if mems is None else (zeros_like(mems),)
    return narrow(d_hidden, dtype), d_parameters, *d_mems
