"""Layers: projections around the attentions, wide from the first product to the last."""

from collections.abc import Mapping, Sequence
from typing import Any

import cupy
from jaxtyping import Bool, Float

from .alibi import biases, check_visible
from .arrays import Array, ieee, narrow, wide
from .attention import (
    Keep,
    Mask,
    attend,
    check_draw,
    heads_grad,
    hide,
    kept,
    mask_grad,
    normalised,
    present,
    seen,
    sum_seen,
)
from .attention import check_masks as check_options
from .masks import causal, merge_masks
from .memory import Mems, check_gradients, update_mems, zeros_like
from .projections import (
    FEED_FORWARD,
    NORM,
    Parameters,
    affine,
    checked,
    feed_forward,
    feed_forward_grad,
    heads,
    inputs_grad,
    layer_norm,
    layer_norm_grad,
    linear,
    linear_grad,
    linears,
    merged,
    narrowed,
)
from .relative import (
    Visible,
    attend_learned_relative,
    attend_learned_relative_grad,
    attend_transformer_xl,
    attend_transformer_xl_grad,
    check_even,
    sinusoids,
)
from .scores import over_rows, scaled_products
from .shapes import Layout, check, check_heads, check_list, check_parameters

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


PROJECTED = {"query": "B N F", "key": "B M F", "value": "B M F"}
PROJECTED_ALIKE = dict.fromkeys(PROJECTED, "B N F")


SELF = {"w_query": "K F", "w_key": "K F", "w_value": "E F"}
MULTI_HEAD = linears("q_proj", "k_proj", "v_proj", "out_proj")
LABML = ("query.linear", "key.linear", "value.linear")
ALIBI = linears(*LABML, "output")
RELATIVE = {
    name: axes
    for name, axes in ALIBI.items()
    if name not in ("query.linear.bias", "key.linear.bias")
} | {
    "key_pos_embeddings": "2P H D",
    "key_pos_bias": "2P H",
    "query_pos_bias": "H D",
}
TRANSFORMER_XL = (
    {"qkv_net.weight": "3F F", "qkv_net.bias": "3F?"}
    | linears("r_net", "o_net")
    | NORM
    | {"u": "H D", "v": "H D"}
)


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
    size = check({"x": "B N F"}, x)
    weights = checked(SELF, parameters, F=size["F"])
    check_options(mask, keep, p, (size["B"], size["N"], size["N"]))
    dtype, (x, mask) = x.dtype, wide(x, mask)
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
    size = check({"x": "B N F"}, x)
    check_parameters(SELF, parameters, F=size["F"])
    wanted = len(parameters["w_value"])
    check({"x": "B N F", "d_output": "B N E"}, x, d_output, E=wanted)
    check_options(mask, keep, p, (size["B"], size["N"], size["N"]))
    d_output, wide_x, wide_mask = wide(d_output, x, mask)
    weights = dict(zip(parameters, wide(*parameters.values()), strict=True))
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
    size, dtype = check(PROJECTED, query, key, value), query.dtype
    check_heads(size["F"], num_heads)
    parameters = checked(MULTI_HEAD, parameters, F=size["F"])
    check_draw(keep, p, (size["B"], num_heads, size["N"], size["M"]))
    mask = None
    if attn_mask is not None or key_padding_mask is not None:
        mask = merge_masks(attn_mask, key_padding_mask, num_heads)
        check_masks(attn_mask, key_padding_mask, size["B"], num_heads, size["N"], size["M"])
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
    size, inputs = check(PROJECTED, query, key, value), (query, key, value)
    check_heads(size["F"], num_heads)
    weights = checked(MULTI_HEAD, parameters, F=size["F"])
    arriving = {"d_output": "B N F", "d_weights": "B H N M"}
    check(PROJECTED | arriving, *inputs, d_output, d_weights, H=num_heads)
    check_draw(keep, p, (size["B"], num_heads, size["N"], size["M"]))
    mask = None
    if attn_mask is not None or key_padding_mask is not None:
        mask = merge_masks(attn_mask, key_padding_mask, num_heads)
        check_masks(attn_mask, key_padding_mask, size["B"], num_heads, size["N"], size["M"])
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


def check_masks(
    attn_mask: Array | None, key_padding_mask: Array | None, B: int, H: int, N: int, M: int
) -> None:
    """The masks fit each other already (merge_masks); hold them to query and key as well."""
    if attn_mask is not None and attn_mask.shape not in ((N, M), (B * H, N, M)):
        raise ValueError(
            f"attn_mask: wanted shape [N M] or [B*H N M] with B={B} H={H} N={N} M={M}, got "
            f"{attn_mask.shape}"
        )
    if key_padding_mask is not None and key_padding_mask.shape != (B, M):
        raise ValueError(
            f"key_padding_mask: wanted shape [B M] with B={B} M={M}, got {key_padding_mask.shape}"
        )


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
    check({"x": "B N F"}, x)
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
    check({"x": "B N F"}, x)
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
    size, dtype = check(PROJECTED, query, key, value), query.dtype
    check_heads(size["F"], num_heads)
    parameters = checked(RELATIVE, parameters, F=size["F"], H=num_heads, D=size["F"] // num_heads)
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
    size, inputs = check(PROJECTED, query, key, value), (query, key, value)
    check_heads(size["F"], num_heads)
    weights = checked(RELATIVE, parameters, F=size["F"], H=num_heads, D=size["F"] // num_heads)
    check(PROJECTED | {"d_output": "B N F"}, *inputs, d_output)
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
    size, dtype = check(PROJECTED_ALIKE, query, key, value), query.dtype
    check_heads(size["F"], num_heads)
    parameters = checked(ALIBI, parameters, F=size["F"])
    check_visible(visible)
    check_draw(keep, p, (size["B"], num_heads, size["N"], size["N"]))
    if visible.shape != (size["N"], size["N"]):
        raise ValueError(f"visible: wanted shape [N N] with N={size['N']}, got {visible.shape}")
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
    size, inputs = check(PROJECTED_ALIKE, query, key, value), (query, key, value)
    check_heads(size["F"], num_heads)
    weights = checked(ALIBI, parameters, F=size["F"])
    check(PROJECTED_ALIKE | {"d_output": "B N F"}, *inputs, d_output)
    check_visible(visible)
    check_draw(keep, p, (size["B"], num_heads, size["N"], size["N"]))
    if visible.shape != (size["N"], size["N"]):
        raise ValueError(f"visible: wanted shape [N N] with N={size['N']}, got {visible.shape}")
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
    size, dtype = check({"x": "B N F", "mem": "B S F?"}, x, mem), x.dtype
    F = size["F"]
    check({"position": "M F"}, position, M=size.get("S", 0) + size["N"], F=F)
    check_heads(F, num_heads)
    parameters = checked(
        layout_of_layer(parameters), parameters, F=F, H=num_heads, D=F // num_heads
    )
    check_eps(eps)
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


def layout_of_layer(parameters: Any) -> Layout:
    """The layout of a layer's mapping; one name of the feed-forward asks for all of these."""
    names = parameters if isinstance(parameters, Mapping) else ()
    feeds = any(str(name).startswith("ff_") for name in names)
    return TRANSFORMER_XL | FEED_FORWARD if feeds else TRANSFORMER_XL


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
    layout = {"x": "B N F", "mem": "B S F?", "d_output": "B N F"}
    size, dtypes = check(layout, x, mem, d_output), (x.dtype, position.dtype)
    F, M = size["F"], size.get("S", 0) + size["N"]
    check({"position": "M F"}, position, M=M, F=F)
    check_heads(F, num_heads)
    weights = checked(layout_of_layer(parameters), parameters, F=F, H=num_heads, D=F // num_heads)
    check_eps(eps)
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


def check_eps(eps: Any) -> None:
    if not (isinstance(eps, int | float) and eps >= 0):
        raise ValueError(f"eps: wanted a number of at least 0, got {eps!r}")


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
    size, dtype = check({"x": "B N F"}, x), x.dtype
    check_list("parameters", parameters)
    if mems is not None:
        check_list("mems", mems, len(parameters))
        size = check(
            {"x": "B N F"} | {f"mems.{layer}": "B S F" for layer in range(len(mems))}, x, *mems
        )
    check_even(size["F"])
    (hidden,), hids = wide(x), []
    position = sinusoids(cupy.get_array_module(x), size["N"] + size.get("S", 0), size["F"]).astype(
        hidden.dtype
    )
    check_draw(keep, p, (len(parameters), size["B"], num_heads, size["N"], len(position)))
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
    size = check({"x": "B N F", "d_output": "B N F"}, x, d_output)
    check_gradients(d_new_mems, new_mems)
    dtype, (hidden, d_hidden) = x.dtype, wide(x, d_output)
    M = size["N"] + (0 if mems is None else mems[0].shape[1])
    position = sinusoids(cupy.get_array_module(x), M, size["F"]).astype(hidden.dtype)
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
