"""Whole layers, with what they keep between their stages rounded to `stage`."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from tests.rounding_variants.attention import Dropout, softmax, weighted
from tests.rounding_variants.machine import Machine
from tests.rounding_variants.operations import positions
from tests.rounding_variants.scores import (
    alibi_bias,
    bias_of,
    dot_scores,
    hide,
    learned_scores,
    masked_scores,
    txl_scores,
)

Inputs = dict[str, Any]


def linear(
    at: Machine, x: ndarray, parameters: Inputs, name: str, residual: ndarray | None = None
) -> ndarray:
    """x W^T + b, and the residual if there is one."""
    weight, bias = at.read(parameters[f"{name}.weight"]), parameters.get(f"{name}.bias")
    bias = None if bias is None else at.read(bias)
    if at.order.addend == "first" and residual is not None:
        y = at.product(x, weight.T, residual)
        return at.stage(y if bias is None else at.acc(y + bias))
    if at.order.addend == "first" or at.order.linear == "fused" or bias is None:
        y = at.stage(at.product(x, weight.T, bias))
    else:
        y = at.stage(at.stage(at.product(x, weight.T)) + bias)
    return y if residual is None else at.stage(residual + y)


def split_heads(x: ndarray, H: int) -> ndarray:
    return x.reshape(*x.shape[:-1], H, -1).swapaxes(-2, -3)


def merge_heads(x: ndarray) -> ndarray:
    return x.swapaxes(-2, -3).reshape(*x.shape[:-3], x.shape[-2], -1)


def layer_norm(
    at: Machine,
    z: ndarray,
    parameters: Inputs,
    eps: float,
    name: str = "layer_norm",
    kept: Callable[[ndarray], ndarray] | None = None,
) -> ndarray:
    """The norm by its weight and bias of that name; rounded by ``kept``, else as a result."""
    gain, bias, out = parameters[f"{name}.weight"], parameters.get(f"{name}.bias"), kept or at.out
    d, eps = at.work(z.shape[-1]), at.work(eps)
    gain, bias = at.read(gain), at.read(np.zeros(gain.shape) if bias is None else bias)
    mu = at.sum(z)[..., None] / d
    c = z - mu
    if at.P.variance == "one_pass":
        variance = np.maximum(at.sum(z * z)[..., None] / d - mu * mu, 0)
    else:
        variance = at.sum(c * c)[..., None] / d
    root = np.sqrt(variance + eps)
    rstd = at.work(1) / root
    if at.order.norm == "quotient":
        return out(c / root * gain + bias)
    if at.order.norm == "root":
        return out(c * rstd * gain + bias)
    if at.order.norm == "shifted":
        return out((z * rstd - mu * rstd) * gain + bias)
    return out(z * (rstd * gain) + (bias - mu * (rstd * gain)))


def self_attention(
    at: Machine,
    x: ndarray,
    parameters: Inputs,
    mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
) -> ndarray:
    q, k, v = (
        at.stage(at.product(at.read(x), at.read(parameters[f"w_{name}"]).T))
        for name in ("query", "key", "value")
    )
    return at.out(weighted(at, masked_scores(at, q, k, mask), v, keep, p)[0])


def projected(at: Machine, pairs: Inputs, parameters: Inputs, num_heads: int) -> list[ndarray]:
    return [
        split_heads(linear(at, at.read(x), parameters, name), num_heads)
        for name, x in pairs.items()
    ]


def finished(
    at: Machine,
    s: ndarray,
    v: ndarray,
    parameters: Inputs,
    name: str,
    keep: ndarray | None = None,
    p: float = 0.0,
) -> ndarray:
    """Attention to v, and the last projection, stored as the result."""
    heard = merge_heads(at.stage(weighted(at, s, v, keep, p)[0]))
    weight, bias = at.read(parameters[f"{name}.weight"]), parameters.get(f"{name}.bias")
    if bias is None:
        return at.out(at.product(heard, weight.T))
    if at.order.addend == "first" or at.order.linear == "fused":
        return at.out(at.product(heard, weight.T, at.read(bias)))
    return at.out(at.to(at.product(heard, weight.T), at.P.storage) + at.read(bias))


def multi_head(
    at: Machine,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    parameters: Inputs,
    num_heads: int,
    attn_mask: ndarray | None = None,
    key_padding_mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
) -> Any:
    pairs = {"q_proj": query, "k_proj": key, "v_proj": value}
    q, k, v = projected(at, pairs, parameters, num_heads)
    mask = attn_mask
    if mask is not None:
        mask = mask.reshape(-1, num_heads if mask.ndim == 3 else 1, *mask.shape[-2:])
        mask = ~mask if mask.dtype == bool else mask
    s = hide(at, dot_scores(at, q, k, bias_of(at, mask)), mask)
    s = s if key_padding_mask is None else hide(at, s, ~key_padding_mask[:, None, None, :])
    weights = Dropout(at, s, keep, p).as_result(softmax(at, s))
    return finished(at, s, v, parameters, "out_proj", keep, p), at.out(weights)


def multi_head_self(
    at: Machine,
    x: ndarray,
    parameters: Inputs,
    num_heads: int,
    attn_mask: ndarray | None = None,
    key_padding_mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
) -> Any:
    return multi_head(at, x, x, x, parameters, num_heads, attn_mask, key_padding_mask, keep, p)


LABML = ("query.linear", "key.linear", "value.linear")
TABLES = ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")


def relative_multi_head(
    at: Machine, query, key, value, parameters, num_heads, align, visible=None, keep=None, p=0.0
) -> ndarray:  # type: ignore[no-untyped-def]
    pairs = dict(zip(LABML, (query, key, value), strict=True))
    q, k, v = projected(at, pairs, parameters, num_heads)
    s = learned_scores(at, q, k, *(parameters[n] for n in TABLES), align, visible)
    return finished(at, s, v, parameters, "output", keep, p)


def alibi_multi_head(
    at: Machine, query, key, value, parameters, num_heads, visible, keep=None, p=0.0
) -> ndarray:  # type: ignore[no-untyped-def]
    pairs = dict(zip(LABML, (query, key, value), strict=True))
    q, k, v = projected(at, pairs, parameters, num_heads)
    bias = alibi_bias(at, num_heads, np.cumsum(visible, -1))
    s = hide(at, dot_scores(at, q, k, bias), visible)
    return finished(at, s, v, parameters, "output", keep, p)


def txl_layer(
    at: Machine,
    x,
    position,
    parameters,
    num_heads,
    mem=None,
    visible=None,
    eps=1e-5,
    keep=None,
    p=0.0,
) -> ndarray:  # type: ignore[no-untyped-def]
    x, N = at.read(x), x.shape[1]
    both = x if mem is None else np.concatenate([at.read(mem), x], 1)
    thirds = np.split(linear(at, both, parameters, "qkv_net"), 3, -1)
    q, k, v = (split_heads(part, num_heads) for part in thirds)
    r = split_heads(linear(at, at.read(position), parameters, "r_net"), num_heads)
    s = txl_scores(at, q[:, :, -N:], k, r, parameters["u"], parameters["v"], visible)
    heard = merge_heads(at.stage(weighted(at, s, v, keep, p)[0]))
    z = linear(at, heard, parameters, "o_net", residual=x)
    if "ff_in.weight" not in parameters:
        return layer_norm(at, z, parameters, eps)
    fed = feed_forward(at, layer_norm(at, z, parameters, eps, kept=at.stage), parameters)
    return layer_norm(at, fed[1], parameters, eps, "ff_norm")


def feed_forward(at: Machine, x: ndarray, parameters: Inputs) -> tuple[ndarray, ndarray]:
    """What the ReLU gives, and the sum that is normalised."""
    inner = np.maximum(linear(at, x, parameters, "ff_in"), 0)
    return inner, linear(at, inner, parameters, "ff_out", residual=x)


def txl_stack(
    at: Machine, x, parameters, num_heads, mems, mem_len, eps=1e-5, keep=None, p=0.0
) -> Any:  # type: ignore[no-untyped-def]
    M = x.shape[1] + (0 if mems is None else mems[0].shape[1])
    position = positions(at, M, x.shape[-1])
    hids = [at.out(at.read(x))]
    for layer, each in enumerate(parameters):
        mem = None if mems is None else mems[layer]
        draw = keep if keep is None or keep.ndim < 5 else keep[layer]
        hids.append(txl_layer(at, hids[-1], position, each, num_heads, mem, None, eps, draw, p))
    if mems is None:
        return hids[-1], None
    both = [np.concatenate([mem, hid], 1) for mem, hid in zip(mems, hids, strict=False)]
    return hids[-1], [x[:, max(x.shape[1] - mem_len, 0) :] for x in both]


LAYERS: dict[str, Any] = {
    "self_attention": self_attention,
    "multi_head_attention": multi_head,
    "multi_head_self_attention": multi_head_self,
    "relative_multi_head_attention": relative_multi_head,
    "alibi_multi_head_attention": alibi_multi_head,
    "transformer_xl_layer": txl_layer,
    "transformer_xl": txl_stack,
}
