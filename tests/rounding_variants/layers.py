"""Whole layers, with what they keep between their stages rounded as the style says."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from tests.rounding_variants.arithmetic import STYLES, Inputs, Machine, Style
from tests.rounding_variants.attention import two_step, weighted
from tests.rounding_variants.operations import positions
from tests.rounding_variants.scores import (
    dot_scores,
    learned_scores,
    sdpa_scores,
    slopes,
    txl_scores,
    with_mask,
)


def linear(at: Machine, x: ndarray, parameters: Inputs, name: str, fused: bool = True) -> ndarray:
    weight, bias = at.read(parameters[f"{name}.weight"]), parameters.get(f"{name}.bias")
    y = at.product(x, weight.T)
    return at.join(y) if bias is None else at.join((y if fused else at.join(y)) + at.read(bias))


def split_heads(x: ndarray, H: int) -> ndarray:
    return x.reshape(*x.shape[:-1], H, -1).swapaxes(-2, -3)


def merge_heads(x: ndarray) -> ndarray:
    return x.swapaxes(-2, -3).reshape(*x.shape[:-3], x.shape[-2], -1)


def layer_norm(
    at: Machine, z: ndarray, gain: ndarray | None, bias: ndarray | None, eps: float
) -> ndarray:
    mu = z.mean(-1, keepdims=True, dtype=at.acc)
    if at.style.declared == ONE_PASS:
        rstd = 1 / np.sqrt(
            np.maximum((z * z).mean(-1, keepdims=True, dtype=at.acc) - mu * mu, 0) + at.acc(eps)
        )
        y = z * rstd - mu * rstd
    else:
        y = (z - mu) / np.sqrt(((z - mu) ** 2).mean(-1, keepdims=True, dtype=at.acc) + at.acc(eps))
    return at.store(
        y * (1 if gain is None else at.read(gain)) + (0 if bias is None else at.read(bias))
    )


ONE_PASS = {"preset": "wide", "variance": "one_pass"}
LAYER_STYLES = {
    "eager": STYLES["eager"],
    "unfused": STYLES["eager_divided"],
    "fused": Style({"preset": "fused", "block": 4}, prob=True, block=4, base2=True),
    "wide": Style("wide", joined=False),
    "one_pass": Style(ONE_PASS, joined=False),
}


def self_attention(
    at: Machine, x: ndarray, parameters: Inputs, mask: ndarray | None = None
) -> ndarray:
    q, k, v = (
        at.join(at.product(at.read(x), at.read(parameters[f"w_{name}"]).T))
        for name in ("query", "key", "value")
    )
    return at.out(weighted(at, sdpa_scores(at, q, k, mask), v)[0])


def multi_head(
    at: Machine, query, key, value, parameters, num_heads, attn_mask=None, key_padding_mask=None
) -> Any:  # type: ignore[no-untyped-def]
    pairs = {"q_proj": query, "k_proj": key, "v_proj": value}
    q, k, v = (
        split_heads(linear(at, at.read(x), parameters, name, not at.style.fold), num_heads)
        for name, x in pairs.items()
    )
    s = dot_scores(at, q, k)
    if attn_mask is not None:
        mask = attn_mask.reshape(-1, num_heads if attn_mask.ndim == 3 else 1, *attn_mask.shape[-2:])
        s = with_mask(at, s, ~mask if mask.dtype == bool else mask)
    s = s if key_padding_mask is None else with_mask(at, s, ~key_padding_mask[:, None, None, :])
    o = at.join(weighted(at, s, v)[0])
    return at.out(linear(at, merge_heads(o), parameters, "out_proj", not at.style.fold)), at.out(
        two_step(at, s)
    )


def multi_head_self(
    at: Machine,
    x: ndarray,
    parameters: Inputs,
    num_heads: int,
    attn_mask=None,
    key_padding_mask=None,
) -> Any:  # type: ignore[no-untyped-def]
    return multi_head(at, x, x, x, parameters, num_heads, attn_mask, key_padding_mask)


def labml(at: Machine, query, key, value, parameters, num_heads) -> tuple[ndarray, ...]:  # type: ignore[no-untyped-def]
    pairs = {"query.linear": query, "key.linear": key, "value.linear": value}
    return tuple(
        split_heads(linear(at, at.read(x), parameters, name, not at.style.fold), num_heads)
        for name, x in pairs.items()
    )


def relative_multi_head(
    at: Machine, query, key, value, parameters, num_heads, align, visible=None
) -> ndarray:  # type: ignore[no-untyped-def]
    q, k, v = labml(at, query, key, value, parameters, num_heads)
    s = learned_scores(
        at,
        q,
        k,
        *(parameters[n] for n in ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")),
        align,
        visible,
    )
    return at.out(
        linear(
            at, merge_heads(at.join(weighted(at, s, v)[0])), parameters, "output", not at.style.fold
        )
    )


def alibi_multi_head(at: Machine, query, key, value, parameters, num_heads, visible) -> ndarray:  # type: ignore[no-untyped-def]
    q, k, v = labml(at, query, key, value, parameters, num_heads)
    bias = slopes(at, num_heads)[:, None, None] * np.cumsum(visible, -1).astype(at.acc)
    s = with_mask(at, at.score(dot_scores(at, q, k) + bias), visible)
    return at.out(
        linear(
            at, merge_heads(at.join(weighted(at, s, v)[0])), parameters, "output", not at.style.fold
        )
    )


def txl_layer(
    at: Machine, x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5
) -> ndarray:  # type: ignore[no-untyped-def]
    x, N, fused = at.read(x), x.shape[1], not at.style.fold
    whole = x if mem is None else np.concatenate([at.read(mem), x], 1)
    q, k, v = (
        split_heads(part, num_heads)
        for part in np.split(linear(at, whole, parameters, "qkv_net", fused), 3, -1)
    )
    r = split_heads(linear(at, at.read(position), parameters, "r_net", fused), num_heads)
    o = at.join(
        weighted(
            at, txl_scores(at, q[:, :, -N:], k, r, parameters["u"], parameters["v"], visible), v
        )[0]
    )
    z = at.join(x + linear(at, merge_heads(o), parameters, "o_net", fused))
    return at.out(
        layer_norm(at, z, parameters["layer_norm.weight"], parameters.get("layer_norm.bias"), eps)
    )


def txl_stack(at: Machine, x, parameters, num_heads, mems, mem_len, eps=1e-5) -> Any:  # type: ignore[no-untyped-def]
    M = x.shape[1] + (0 if mems is None else mems[0].shape[1])
    position = positions(at.style.fold)({"M": M, "F": x.shape[-1]}, at.dtype)
    hids = [at.out(at.read(x))]
    for layer, each in enumerate(parameters):
        hids.append(
            txl_layer(
                at,
                hids[-1],
                position,
                each,
                num_heads,
                None if mems is None else mems[layer],
                None,
                eps,
            )
        )
    if mems is None:
        return hids[-1], None
    whole = [np.concatenate([mem, hid], 1) for mem, hid in zip(mems, hids, strict=False)]
    return hids[-1], [x[:, max(x.shape[1] - mem_len, 0) :] for x in whole]


LAYERS: dict[str, Callable[..., Any]] = {
    "self_attention": self_attention,
    "multi_head_attention": multi_head,
    "multi_head_self_attention": multi_head_self,
    "relative_multi_head_attention": relative_multi_head,
    "alibi_multi_head_attention": alibi_multi_head,
    "transformer_xl_layer": txl_layer,
    "transformer_xl": txl_stack,
}
