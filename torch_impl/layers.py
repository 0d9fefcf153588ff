"""
Layers: the specification is :mod:`spec.layers`.

A layer whose name begins with an underscore is the computation itself, on inputs that are checked,
with projections that may be submodules; it also takes the draw of a dropout on its weights, and
what its attention is computed with.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .alibi import check_square, get_alibi_biases
from .attention import Keep, Mask, bias_and_visible, check_draw
from .masks import check_attn_mask, check_padding, two_masks
from .memory import Mems, update_mems
from .projections import (
    LABML,
    MEM,
    OF_HEADS,
    OF_SELF,
    TABLES,
    Parameters,
    Project,
    Projections,
    TransformerXLParts,
    X,
    affine,
    check_alibi,
    check_multi_head,
    check_relative,
    check_self,
    check_xl_layer,
    merge_heads,
    of_mapping,
    parts_of_mapping,
    projected,
    split_heads,
)
from .relative import Visible, check_learned_relative, four_axes, sinusoidal_positions
from .selectable_attentions import TORCH, Attentions
from .shapes import check, check_list, check_mask

__all__ = [
    "alibi_multi_head_attention",
    "multi_head_attention",
    "multi_head_self_attention",
    "relative_multi_head_attention",
    "self_attention",
    "transformer_xl",
    "transformer_xl_layer",
]


def self_attention(
    x: Float[Tensor, "B N F"],
    parameters: Parameters,
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Tensor, "B N E"]:
    """As :func:`spec.layers.self_attention`: three projections and SDPA."""
    check_self(x, parameters)
    check_draw(keep, p, (x.shape[0], x.shape[1], x.shape[1]))
    projections = [partial(affine, weight=parameters[name]) for name in OF_SELF]
    # the one head has an axis of its own
    drawn = keep if keep is None or keep.ndim < 3 else keep.unsqueeze(1)
    return _self_attention(x, projections, mask, drawn, p)


def _self_attention(
    x: Tensor,
    projections: Sequence[Project],
    mask: Mask,
    keep: Keep = None,
    p: float = 0.0,
    attentions: Attentions = TORCH,
) -> Tensor:
    B, N, _ = x.shape
    check_mask("mask", mask, (B, N, N), float_too=True)
    query, key, value = (project(x).unsqueeze(1) for project in projections)
    bias, visible = (
        None if part is None else part.unsqueeze(1) for part in bias_and_visible(mask, 3)
    )
    return attentions.masked(query, key, value, bias, visible, keep, p).squeeze(1)


def multi_head_attention(
    query: Float[Tensor, "B N F"],
    key: Float[Tensor, "B M F"],
    value: Float[Tensor, "B M F"],
    parameters: Parameters,
    num_heads: int,
    attn_mask: Bool[Tensor, "... N M"] | Float[Tensor, "... N M"] | None = None,
    key_padding_mask: Bool[Tensor, "B M"] | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Float[Tensor, "B N F"], Float[Tensor, "B H N M"]]:
    """
    As :func:`spec.layers.multi_head_attention`: projections, and product, softmax, product, because
    the weights are a result.
    """
    check_multi_head(query, key, value, parameters, num_heads)
    check_draw(keep, p, (query.shape[0], num_heads, query.shape[1], key.shape[1]))
    projections = of_mapping(parameters, OF_HEADS)
    return _multi_head_attention(
        query, key, value, projections, num_heads, attn_mask, key_padding_mask, keep, p
    )


def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    projections: Projections,
    num_heads: int,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    keep: Keep = None,
    p: float = 0.0,
    attentions: Attentions = TORCH,
    need_weights: bool = True,
) -> tuple[Tensor, Any]:
    """The output, and the weights if they are wanted."""
    check_masks(attn_mask, key_padding_mask, query, key, num_heads)
    bias, visible = added_and_visible(attn_mask, key_padding_mask, num_heads)
    q, k, v = projected((query, key, value), projections, num_heads, visible)
    terms = q, k, v, bias, visible, keep, p
    attended, weights = (
        attentions.weighed(*terms) if need_weights else (attentions.masked(*terms), None)
    )
    return projections.output(merge_heads(attended)), weights


def added_and_visible(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, H: int
) -> tuple[Tensor | None, Tensor | None]:
    hidden, added = two_masks(attn_mask, key_padding_mask, H)
    if added is None:
        return None, None if hidden is None else ~hidden
    visible = added != -torch.inf
    return added, visible if hidden is None else visible & ~hidden


def check_masks(attn_mask: Any, key_padding_mask: Any, query: Tensor, key: Tensor, H: int) -> None:
    (B, N), M = query.shape[:2], key.shape[1]
    if attn_mask is not None:
        check_attn_mask(attn_mask, H)
    if key_padding_mask is not None:
        check_padding(key_padding_mask, attn_mask, H)
    if attn_mask is not None and tuple(attn_mask.shape) not in ((N, M), (B * H, N, M)):
        raise ValueError(
            f"attn_mask: wanted shape [N M] or [B*H N M] with B={B} H={H} N={N} M={M}, got "
            f"{tuple(attn_mask.shape)}"
        )
    if key_padding_mask is not None and tuple(key_padding_mask.shape) != (B, M):
        raise ValueError(
            f"key_padding_mask: wanted shape [B M] with B={B} M={M}, got "
            f"{tuple(key_padding_mask.shape)}"
        )


def multi_head_self_attention(
    x: Float[Tensor, "B N F"],
    parameters: Parameters,
    num_heads: int,
    attn_mask: Bool[Tensor, "... N N"] | Float[Tensor, "... N N"] | None = None,
    key_padding_mask: Bool[Tensor, "B N"] | None = None,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Float[Tensor, "B N F"], Float[Tensor, "B H N N"]]:
    """As :func:`spec.layers.multi_head_self_attention`."""
    check(X, x)
    return multi_head_attention(
        x, x, x, parameters, num_heads, attn_mask, key_padding_mask, keep, p
    )


def relative_multi_head_attention(
    query: Float[Tensor, "B N F"],
    key: Float[Tensor, "B M F"],
    value: Float[Tensor, "B M F"],
    parameters: Parameters,
    num_heads: int,
    align: str,
    visible: Visible = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Tensor, "B N F"]:
    """
    As :func:`spec.layers.relative_multi_head_attention`: projections, and SDPA with the shifted
    position score as its mask.
    """
    check_relative(query, key, value, parameters, num_heads)
    check_draw(keep, p, (query.shape[0], num_heads, query.shape[1], key.shape[1]))
    projections, tables = of_mapping(parameters, LABML), [parameters[name] for name in TABLES]
    return _relative_multi_head_attention(
        query, key, value, projections, tables, num_heads, align, visible, keep, p
    )


def _relative_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    projections: Projections,
    tables: Sequence[Tensor],
    num_heads: int,
    align: str,
    visible: Visible,
    keep: Keep = None,
    p: float = 0.0,
    attentions: Attentions = TORCH,
) -> Tensor:
    embeddings, bias, query_bias = tables
    positions = embeddings, bias, query_bias, align
    check_learned_relative(
        split_heads(query, num_heads), split_heads(key, num_heads), *positions, visible=visible
    )
    seen = four_axes(visible)
    q, k, v = projected((query, key, value), projections, num_heads, seen)
    attended = attentions.learned_relative(q, k, v, *positions, seen, keep, p)
    return projections.output(merge_heads(attended))


def alibi_multi_head_attention(
    query: Float[Tensor, "B N F"],
    key: Float[Tensor, "B N F"],
    value: Float[Tensor, "B N F"],
    parameters: Parameters,
    num_heads: int,
    visible: Bool[Tensor, "N N"],
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Tensor, "B N F"]:
    """
    As :func:`spec.layers.alibi_multi_head_attention`: projections, and SDPA with the biases of this
    very mask.
    """
    check_alibi(query, key, value, parameters, num_heads)
    check_draw(keep, p, (query.shape[0], num_heads, query.shape[1], key.shape[1]))
    projections = of_mapping(parameters, LABML)
    return _alibi_multi_head_attention(query, key, value, projections, num_heads, visible, keep, p)


def _alibi_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    projections: Projections,
    num_heads: int,
    visible: Tensor,
    keep: Keep = None,
    p: float = 0.0,
    attentions: Attentions = TORCH,
) -> Tensor:
    check_square(visible, query.shape[1])
    biases = get_alibi_biases(
        num_heads, visible, dtype=torch.promote_types(query.dtype, torch.float32)
    )
    seen = four_axes(visible)
    q, k, v = projected((query, key, value), projections, num_heads, seen)
    return projections.output(merge_heads(attentions.masked(q, k, v, biases[None], seen, keep, p)))


def transformer_xl_layer(
    x: Float[Tensor, "B N F"],
    position: Float[Tensor, "M F"],
    parameters: Parameters,
    num_heads: int,
    mem: Float[Tensor, "B S F"] | None = None,
    visible: Visible = None,
    eps: float = 1e-5,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Tensor, "B N F"]:
    """
    As :func:`spec.layers.transformer_xl_layer`. Queries are projected for the segment alone; the
    memory is detached.
    """
    check_xl_layer(x, position, parameters, num_heads, mem, eps)
    check_draw(keep, p, (x.shape[0], num_heads, x.shape[1], position.shape[0]))
    parts = parts_of_mapping(parameters, eps)
    return _transformer_xl_layer(x, position, parts, num_heads, mem, visible, keep, p)


def _transformer_xl_layer(
    x: Tensor,
    position: Tensor,
    parts: TransformerXLParts,
    num_heads: int,
    mem: Tensor | None,
    visible: Visible,
    keep: Keep = None,
    p: float = 0.0,
    attentions: Attentions = TORCH,
) -> Tensor:
    keys = x if mem is None else torch.cat([mem.detach(), x], dim=1)
    q, k, v = (split_heads(part, num_heads) for part in parts.query_key_value(x, keys))
    check_mask("visible", visible, (*q.shape[:-1], k.shape[-2]))
    r = split_heads(parts.position(position), num_heads)
    attended = attentions.transformer_xl(q, k, v, r, parts.u, parts.v, visible, keep, p)
    y = parts.norm(x + parts.output(merge_heads(attended)))
    return y if parts.feed_forward is None else parts.feed_forward(y)


def transformer_xl(
    x: Float[Tensor, "B N F"],
    parameters: Sequence[Parameters],
    num_heads: int,
    mems: Mems,
    mem_len: int,
    eps: float = 1e-5,
    keep: Keep = None,
    p: float = 0.0,
) -> tuple[Float[Tensor, "B N F"], Mems]:
    """As :func:`spec.layers.transformer_xl`."""
    check_segment(x, parameters, mems)
    position = positions_of(x, mems)
    check_draw(keep, p, (len(parameters), x.shape[0], num_heads, x.shape[1], len(position)))
    draws = [
        keep if keep is None or keep.ndim < 5 else keep[layer % len(keep)]
        for layer in range(len(parameters))
    ]
    layers = [
        partial(
            transformer_xl_layer, parameters=weights, num_heads=num_heads, eps=eps, keep=draw, p=p
        )
        for weights, draw in zip(parameters, draws, strict=True)
    ]
    *hids, output = hidden_states(x, layers, position, mems)
    return output, update_mems(hids, mems, mem_len)


def hidden_states(
    x: Tensor, layers: Sequence[Callable[..., Tensor]], position: Tensor, mems: Mems
) -> list[Tensor]:
    """The segment, and what each layer makes of it with its memory."""
    hids = [x]
    memories: Sequence[Tensor | None] = mems or [None for _ in layers]
    for layer, mem in zip(layers, memories, strict=True):
        hids.append(layer(hids[-1], position, mem=mem))
    return hids


def check_segment(x: Any, parameters: Any, mems: Any) -> None:
    check(X, x)
    check_list("parameters", parameters)
    if mems is not None:
        check_list("mems", mems, len(parameters))
        check((*X, *(MEM._replace(name=f"mems.{layer}") for layer in range(len(mems)))), x, *mems)


def positions_of(x: Tensor, mems: Mems) -> Tensor:
    """The sinusoids that all layers share, one row for each position of memory and segment."""
    S = 0 if mems is None else mems[0].shape[1]
    return sinusoidal_positions(x.shape[1] + S, x.shape[2], dtype=x.dtype, device=x.device)
