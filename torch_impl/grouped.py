"""
Attention as it is written today: the specification is :mod:`spec.grouped`.
"""

from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnverify.contract.attention import check_grouped, check_parts

from .arrays import TENSORS
from .attention import Keep, Mask, bias_and_visible, dropped, without_hidden
from .isolation import finite, is_lost, no_number, sum_seen
from .masks import visible_keys
from .scores import apart, wide
from .transforms.autocast import lowered

__all__ = [
    "grouped_attention",
    "grouped_attention_blocked",
    "merge_attention",
]

BLOCK = 32
"""Keys that :func:`grouped_attention_blocked` attends to at a time."""

Results = tuple[Float[Tensor, "B H N E"], Float[Tensor, "B H N"]]


@lowered
def grouped_attention(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B G M D"],
    value: Float[Tensor, "B G M E"],
    mask: Mask = None,
    soft_cap: float | None = None,
    sink: Float[Tensor, "H"] | None = None,
    scale: float | None = None,
    keep: Keep = None,
    p: float = 0.0,
    **options: Any,
) -> Results:
    """
    As :func:`spec.grouped.grouped_attention`, spelled out; keys and values are repeated for each of
    their heads. Half types are computed in float32 and rounded once.
    """
    check_grouped(TENSORS, query, key, value, mask, soft_cap, sink, scale, keep, p)
    bias, visible = bias_and_pairs(query, key, mask, options)
    return spelled_out(query, key, value, bias, visible, soft_cap, sink, scale, keep, p)


@lowered
def grouped_attention_blocked(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B G M D"],
    value: Float[Tensor, "B G M E"],
    mask: Mask = None,
    soft_cap: float | None = None,
    sink: Float[Tensor, "H"] | None = None,
    scale: float | None = None,
    keep: Keep = None,
    p: float = 0.0,
    **options: Any,
) -> Results:
    """
    The same over blocks of keys, as split-KV kernels do: a part for each block, the sink in the
    first alone, merged in float32 and rounded once.
    """
    check_grouped(TENSORS, query, key, value, mask, soft_cap, sink, scale, keep, p)
    bias, visible = bias_and_pairs(query, key, mask, options)
    if is_lost(
        visible is not None, bias, query, key, value
    ):  # parts would take infinity from infinity
        return spelled_out(query, key, value, bias, visible, soft_cap, sink, scale, keep, p)
    q, k, v, logit = wide(query, key, value, sink)
    parts = []
    for first in range(0, key.shape[2], BLOCK):
        at = slice(first, first + BLOCK)
        added, kept = (x if x is None or x.shape[-1] == 1 else x[..., at] for x in (bias, keep))
        seen = visible[..., at]
        own = None if first else logit
        options_of = soft_cap, own, scale, kept, p
        parts.append(spelled_out(q, k[:, :, at], v[:, :, at], added, seen, *options_of))
    outputs, lses = (torch.stack(x) for x in zip(*parts, strict=True))
    output, lse = merged(outputs, lses)
    return output.to(query.dtype), lse


def spelled_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    visible: Tensor,
    soft_cap: float | None,
    sink: Tensor | None,
    scale: float | None,
    keep: Tensor | None,
    p: float,
) -> tuple[Tensor, Tensor]:
    """
    The formula over visible pairs [B H N M]. A row that sees no key, nor a sink, or whose scores
    are all minus infinity, goes through it as zeros, and is cleared after.
    """
    r = query.shape[1] // key.shape[1]
    q, k, v, logit = wide(query, key, value, sink)  # first, so that gradients are summed wide
    k, v = (x.repeat_interleave(r, 1) for x in (k, v))
    q, k, v = without_hidden(q, k, v, visible)
    lost = is_lost(visible is not None, bias, q, k, v)
    factor = sqrt(1 / q.shape[-1]) if scale is None else scale
    if lost:
        visible = without_lost(q, k, visible, bias, soft_cap, factor)
        q, k = with_lost_gradients(q, k, visible)
    score = visible_score(q, k, lost, factor)
    if soft_cap is not None:
        seen = score.where(visible, 0)  # of a NaN, the slope is NaN, and so is 0 times it
        score = soft_cap * torch.tanh(seen / soft_cap)
    score = score if bias is None else score + bias
    rest = score.new_full((1, 1, 1), -torch.inf) if logit is None else logit[:, None, None]
    rest = rest.expand(*score.shape[:-1], 1)
    whole = torch.cat([torch.where(visible, score, -torch.inf), rest], -1)
    blind = whole.amax(-1, keepdim=True) == -torch.inf
    whole = whole.masked_fill(blind, 0.0)
    top = whole.amax(-1, keepdim=True).detach()
    lse = top + torch.exp(whole - top).sum(-1, keepdim=True).log()
    weights = dropped(torch.softmax(whole, -1)[..., :-1].masked_fill(blind, 0.0), keep, p)
    output = sum_seen(weights, visible, v) if lost else torch.matmul(weights, v)
    return output.to(query.dtype), lse.masked_fill(blind, -torch.inf)[..., 0]


def without_lost(
    query: Tensor,
    key: Tensor,
    visible: Tensor,
    bias: Tensor | None,
    soft_cap: float | None,
    factor: float,
) -> Tensor:
    """The visible pairs but those whose score is minus infinity; a cap makes a number of it."""
    if soft_cap is not None:
        return visible
    score = torch.matmul(query.detach(), key.detach().mT) * factor
    return visible & ((score if bias is None else score + bias) != -torch.inf)


def with_lost_gradients(query: Tensor, key: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """The factors, whose gradients are no number where a visible pair has none."""
    pairs = visible.to(query.dtype)
    rows = torch.matmul(pairs, (~key.isfinite()).to(query.dtype)) > 0
    keys = torch.matmul(pairs.mT, (~query.isfinite()).to(query.dtype)) > 0
    return no_number(query, rows), no_number(key, keys)


def visible_score(query: Tensor, key: Tensor, lost: bool, factor: float) -> Tensor:
    """q.k times a factor; of what is not finite what is lost stays with the pairs that have it."""
    factors = (finite(query), finite(key)) if lost else (query, key)
    product = torch.matmul(*rows_apart(*factors))
    if lost:
        raw = torch.matmul(query.detach(), key.detach().mT)
        product = product + raw.where(~raw.isfinite(), 0)
    return product * factor


def rows_apart(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    q, k = apart(query, key)
    return q, k.mT


def bias_and_pairs(
    query: Tensor, key: Tensor, mask: Mask, options: dict[str, Any]
) -> tuple[Tensor | None, Tensor]:
    """What is added to the scores, and which pairs see each other [B H N M]."""
    B, H, N, M = (*query.shape[:3], key.shape[2])
    bias, shown = bias_and_visible(mask, 4)
    seen = visible_keys(B, N, M, device=query.device, **options)[:, None].expand(B, H, N, M)
    return bias, seen if shown is None else seen & shown


def merge_attention(
    outputs: Float[Tensor, "C B H N E"], lses: Float[Tensor, "C B H N"]
) -> tuple[Float[Tensor, "B H N E"], Float[Tensor, "B H N"]]:
    """
    As :func:`spec.grouped.merge_attention`. Half types are computed in float32 and rounded once.

    That no lse is plus infinity or NaN is looked at first, which waits for the device.
    """
    check_parts(TENSORS, outputs, lses)
    return merged(outputs, lses)


def merged(outputs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """The parts merged; an lse that is no number makes none of its row."""
    parts, scores = wide(outputs, lses)
    there = scores != -torch.inf
    shown = torch.where(there, scores, 0)
    top = torch.where(there, scores, -torch.inf).amax(0).detach()
    top = torch.where(top != -torch.inf, top, 0)
    e = torch.where(there, torch.exp(torch.where(there, shown - top, 0)), 0)
    total = e.sum(0)
    seen = total != 0
    safe = torch.where(seen, total, 1)
    lse = torch.where(seen, top + safe.log(), -torch.inf)
    mean = (torch.where(there[..., None], parts, 0) * (e / safe)[..., None]).sum(0)
    return mean.to(outputs.dtype), lse
