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

from attnverify.contract.arguments import check_draw, check_mask
from attnverify.contract.attention import check_learned, pairs
from attnverify.contract.layers import (
    X,
    check_alibi,
    check_multi_head,
    check_relative,
    check_self_attention,
    check_xl_layer,
    check_xl_stack,
)
from attnverify.contract.masks import check_layer_masks
from attnverify.contract.shapes import check

from .alibi import get_alibi_biases
from .arrays import TENSORS
from .attention import Keep, Mask, bias_and_visible
from .masks import two_masks
from .memory import Mems, update_mems
from .paths.selectable_attentions import TORCH, Attentions
from .projections import (
    LABML,
    OF_HEADS,
    OF_SELF,
    TABLES,
    Parameters,
    Project,
    Projections,
    TransformerXLParts,
    affine,
    merge_heads,
    of_mapping,
    parts_of_mapping,
    projected,
    split_heads,
)
from .relative import Visible, four_axes, sinusoidal_positions

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
    check_self_attention(TENSORS, x, parameters, mask, keep, p)
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
    check_multi_head(TENSORS, (query, key, value), parameters, num_heads, keep, p)
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
    (B, N), M = query.shape[:2], key.shape[1]
    check_layer_masks(TENSORS, attn_mask, key_padding_mask, B, num_heads, N, M)
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
    check(TENSORS, X, x)
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
    check_relative(TENSORS, (query, key, value), parameters, num_heads, keep, p)
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
    of_heads = split_heads(query, num_heads), split_heads(key, num_heads)
    at = check_learned(TENSORS, *of_heads, tables, align)
    check_mask(TENSORS, "visible", visible, pairs(at))
    seen = four_axes(visible)
    q, k, v = projected((query, key, value), projections, num_heads, seen)
    attended = attentions.learned_relative(q, k, v, *tables, align, seen, keep, p)
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
    check_alibi(TENSORS, (query, key, value), parameters, num_heads, visible, keep, p)
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
    at = check_xl_layer(TENSORS, x, position, parameters, num_heads, mem, eps)
    check_draw(TENSORS, keep, p, pairs(at))
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
    check_mask(TENSORS, "visible", visible, (*q.shape[:-1], k.shape[-2]))
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
    at = check_xl_stack(TENSORS, x, parameters, mems)
    position = positions_of(x, mems)
    check_draw(TENSORS, keep, p, (len(parameters), at["B"], num_heads, at["N"], at["M"]))
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


def positions_of(x: Tensor, mems: Mems) -> Tensor:
    """The sinusoids that all layers share, one row for each position of memory and segment."""
    S = 0 if mems is None else mems[0].shape[1]
    return sinusoidal_positions(x.shape[1] + S, x.shape[2], dtype=x.dtype, device=x.device)
