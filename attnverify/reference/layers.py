"""
The layers in stages, like :mod:`attnverify.reference.attention`: projections, heads, attention,
heads side by side, projection, norm.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.reference.attention import (
    attend,
    drop,
    get_alibi_biases,
    inverse_root,
    learned_relative_attention,
    merge_masks,
    scaled_dot_product_attention,
    scaled_dot_product_score,
    see,
    sinusoidal_positions,
    transformer_xl_attention,
    update_mems,
    weigh,
)


def linear(x: ndarray, parameters: Any, name: str) -> ndarray:
    y: ndarray = x @ parameters[f"{name}.weight"].T
    return y if parameters.get(f"{name}.bias") is None else y + parameters[f"{name}.bias"]


def split(x: ndarray, H: int) -> ndarray:
    """[B N F] becomes [B H N D]."""
    B, N, F = x.shape
    return x.reshape(B, N, H, F // H).swapaxes(1, 2)


def join(x: ndarray) -> ndarray:
    """[B H N D] becomes [B N F]."""
    B, H, N, D = x.shape
    return x.swapaxes(1, 2).reshape(B, N, H * D)


def layer_norm(x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    y = weight * centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return y if bias is None else y + bias


def self_attention(
    x: ndarray, parameters: Any, mask: Any = None, keep: Any = None, p: float = 0.0, **stages: Any
) -> ndarray:
    query, key, value = (x @ parameters[name].T for name in ("w_query", "w_key", "w_value"))
    return scaled_dot_product_attention(query, key, value, mask, keep, p, **stages)


def multi_head_attention(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    parameters: Any,
    num_heads: int,
    attn_mask: Any = None,
    key_padding_mask: Any = None,
    keep: Any = None,
    p: float = 0.0,
    merge_masks: Any = merge_masks,
    see: Any = see,
    weigh: Any = weigh,
    split: Any = split,
    join: Any = join,
    scale: Any = inverse_root,
    linear: Any = linear,
    drop: Any = drop,
) -> tuple[ndarray, ndarray]:
    H = num_heads
    q, k, v = (
        split(linear(x, parameters, f"{name}_proj"), H)
        for name, x in {"q": query, "k": key, "v": value}.items()
    )
    score = scaled_dot_product_score(q, k, scale=scale)
    s, visible = see(
        score, np.broadcast_to(merge_masks(attn_mask, key_padding_mask, H), score.shape)
    )
    attended = attend(s, visible, v, keep, p, weigh=weigh, drop=drop)
    return linear(join(attended), parameters, "out_proj"), drop(weigh(s, visible), keep, p)


def multi_head_self_attention(
    x: ndarray,
    parameters: Any,
    num_heads: int,
    attn_mask: Any = None,
    key_padding_mask: Any = None,
    keep: Any = None,
    p: float = 0.0,
    **stages: Any,
) -> tuple[ndarray, ndarray]:
    return multi_head_attention(
        x, x, x, parameters, num_heads, attn_mask, key_padding_mask, keep, p, **stages
    )


def projected(
    query: ndarray, key: ndarray, value: ndarray, parameters: Any, H: int, split: Any = split
) -> list[ndarray]:
    named = {"query.linear": query, "key.linear": key, "value.linear": value}
    return [split(linear(x, parameters, name), H) for name, x in named.items()]


def relative_multi_head_attention(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    parameters: Any,
    num_heads: int,
    align: str,
    visible: Any = None,
    split: Any = split,
    join: Any = join,
    **stages: Any,
) -> ndarray:
    q, k, v = projected(query, key, value, parameters, num_heads, split)
    embeddings, bias, query_bias = (
        parameters[name] for name in ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")
    )
    attended = learned_relative_attention(
        q, k, v, embeddings, bias, query_bias, align, visible, **stages
    )
    return linear(join(attended), parameters, "output")


def alibi_multi_head_attention(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    parameters: Any,
    num_heads: int,
    visible: ndarray,
    biases: Any = get_alibi_biases,
    split: Any = split,
    join: Any = join,
    scale: Any = inverse_root,
    **stages: Any,
) -> ndarray:
    q, k, v = projected(query, key, value, parameters, num_heads, split)
    score = scaled_dot_product_score(q, k, scale=scale) + biases(num_heads, visible)
    return linear(
        join(attend(*see(score, np.broadcast_to(visible, score.shape)), v, **stages)),
        parameters,
        "output",
    )


def three_parts(y: ndarray, H: int) -> list[ndarray]:
    """Query, key and value, one after the other on the last axis."""
    return np.split(y, 3, axis=-1)


def transformer_xl_layer(
    x: ndarray,
    position: ndarray,
    parameters: Any,
    num_heads: int,
    mem: Any = None,
    visible: Any = None,
    eps: float = 1e-5,
    parts: Any = three_parts,
    together: Any = lambda mem, x: np.concatenate([mem, x], axis=1),
    norm: Any = layer_norm,
    residual: Any = np.add,
    join: Any = join,
    feed: Any = None,
    **stages: Any,
) -> ndarray:
    """``feed``: the feed-forward, :func:`feed_forward` unless another is given."""
    H, N = num_heads, x.shape[1]
    keys = x if mem is None else together(mem, x)
    q, k, v = (split(part, H) for part in parts(linear(keys, parameters, "qkv_net"), H))
    r = split(linear(position, parameters, "r_net")[None], H)[0]
    attended = transformer_xl_attention(
        q[:, :, -N:], k, v, r, parameters["u"], parameters["v"], visible, **stages
    )
    y = residual(x, linear(join(attended), parameters, "o_net"))
    y = norm(y, parameters["layer_norm.weight"], parameters.get("layer_norm.bias"), eps)
    return (feed or feed_forward)(y, parameters, eps) if "ff_in.weight" in parameters else y


def feed_forward(
    x: ndarray,
    parameters: Any,
    eps: float,
    activation: Any = lambda a: np.maximum(a, 0),
    residual: Any = np.add,
    norm: Any = layer_norm,
) -> ndarray:
    y = linear(activation(linear(x, parameters, "ff_in")), parameters, "ff_out")
    bias = parameters.get("ff_norm.bias")
    return norm(residual(x, y), parameters["ff_norm.weight"], bias, eps)


def transformer_xl(
    x: ndarray,
    parameters: Any,
    num_heads: int,
    mems: Any,
    mem_len: int,
    eps: float = 1e-5,
    kept: slice = slice(0, -1),
    mem_of: Any = None,
    positions: Any = sinusoidal_positions,
    update: Any = update_mems,
    keep: Any = None,
    **stages: Any,
) -> tuple[ndarray, Any]:
    """``kept``: which of the hidden states go to memory; ``mem_of``: which memory a layer reads."""
    position = positions(x.shape[1] + (0 if mems is None else mems[0].shape[1]), x.shape[2])
    hids = [x]
    for layer, weights in enumerate(parameters):
        mem = None if mems is None else mems[mem_of(layer) if mem_of else layer]
        draw = keep if keep is None or keep.ndim < 5 else keep[layer % len(keep)]
        inputs = hids[-1], position, weights, num_heads, mem
        hids.append(transformer_xl_layer(*inputs, eps=eps, keep=draw, **stages))
    return hids[-1], update(hids[kept], mems, mem_len)
