"""
Additive attention in blocks that stay in a cache: the law is :mod:`spec.attention`.

Written for CPUs, as :mod:`torch_impl.blocked` is: no N x M tensor exists, let alone one of N x M x A. The hidden layer of a few queries
at a time, [n M A], is made in one room, where PyTorch's tanh, vectorised, costs no more than a division. Half types are computed in
float32 and rounded once.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from torch_impl.attention import ADDITIVE_ATTENTION, Keep, Mask, check_options
from torch_impl.blocked_rows import (
    ELEMENTS,
    Block,
    add_to_mask,
    blocks,
    exponentials,
    extent,
    masked,
    mixed,
    part,
    place,
    present,
    scores_grad,
)
from torch_impl.relative import four_axes
from torch_impl.scores import wide
from torch_impl.shapes import check

__all__ = ["additive_attention_blocked"]


def additive_attention_blocked(
    query: Float[Tensor, "B N Q"],
    key: Float[Tensor, "B M K"],
    value: Float[Tensor, "B M E"],
    w_query: Float[Tensor, "A Q"],
    w_key: Float[Tensor, "A K"],
    w_score: Float[Tensor, "A"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Tensor, "B N E"]:
    """As :func:`spec.attention.additive_attention`."""
    check(ADDITIVE_ATTENTION, query, key, value, w_query, w_key, w_score)
    check_options(query, key, mask, keep, p)
    mask, keep = one_head(mask), one_head(keep)
    if there := present(mask, query.shape[1], key.shape[1], causal=False):
        sees, seen = (x[:, 0] for x in there[:2])
        query, key, value = query.where(sees, 0), key.where(seen, 0), value.where(seen, 0)
    q, k, x, w_query, w_key, w_score = wide(query, key, value, w_query, w_key, w_score)
    z_query, z_key = F.linear(q, w_query), F.linear(k, w_key)
    return BlockedAdditive.apply(1 / (1 - p), z_query, z_key, x, mask, keep, w_score).to(query.dtype)


def one_head(mask: Tensor | None) -> Tensor | None:
    """A mask of up to three axes, with four."""
    return None if mask is None else four_axes(mask[(None,) * (3 - mask.ndim)].unsqueeze(1))


class Terms(NamedTuple):
    """Projected queries [B N A] and keys [B M A], values, masks with four axes, and the weights of the features."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    keep: Tensor | None
    w_score: Tensor


class BlockedAdditive(torch.autograd.Function):
    """Keeps the output and two numbers a row; the backward pass computes the hidden layer again."""

    @staticmethod
    def forward(ctx: Any, share: float, *tensors: Tensor | None) -> Tensor:
        at = Terms(*tensors)
        out = at.value.new_empty(*at.query.shape[:-1], at.value.shape[-1])
        tops, norms = (out.new_empty(*out.shape[:-1], 1) for _ in range(2))
        rooms, room = two_rooms(at)
        for block in blocks_of(at):
            rows = block.b, block.rows
            S = scores(at, block, rooms[0], room)
            top, norm = exponentials(S)
            keep = None if at.keep is None else part(at.keep, block)
            tops[rows], norms[rows] = top[0], norm[0]
            out[rows] = mixed(S, norm, at.value[block.b, None], keep, share)[0]
        ctx.share = share
        ctx.save_for_backward(out, tops, norms, *tensors)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        out, tops, norms, *tensors = ctx.saved_tensors
        at, share = Terms(*tensors), ctx.share
        wanted = at._replace(mask=at.mask if ctx.needs_input_grad[4] else None, keep=None)
        d = Terms(*(x if x is None else out.new_zeros(x.shape) for x in wanted))
        rooms, room = two_rooms(at)
        for block in blocks_of(at):
            rows, b = (block.b, block.rows), (block.b, None)
            S = scores(at, block, rooms[0], room).sub_(tops[rows]).exp_()
            keep = None if at.keep is None else part(at.keep, block)
            d_out = (d_output[rows] / norms[rows])[None]
            dS = scores_grad(S, d_out, out[rows], at.value[b], d.value[b], keep, share, rooms[1])
            add_to_mask(d.mask, dS, block)
            projections_grad(at, d, block, dS[0], room)
        d.query.mul_(at.w_score)
        d.key.mul_(at.w_score)
        return None, *d._replace(mask=d.mask if d.mask is None else d.mask.to(at.mask.dtype))


def blocks_of(at: Terms) -> Iterator[Block]:
    return blocks(at.query.shape[0], 1, at.query.shape[1], at.key.shape[1], causal=False)


def two_rooms(at: Terms) -> tuple[Tensor, Tensor]:
    """Room twice for the scores of a block, and for the hidden layer of as many queries as fit into a cache."""
    N, (M, A) = at.query.shape[1], at.key.shape[1:]
    _, n = extent(1, N, M)
    return at.query.new_empty(2, n * M), at.query.new_empty(min(n, max(1, ELEMENTS // (M * A))) * M * A)


def hidden(at: Terms, block: Block, room: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The hidden layer [r M A] of some rows of a block after the other, each time in the same room."""
    query, key = at.query[block.b, block.rows], at.key[block.b]
    r = len(room) // key.numel()
    for i in range(0, len(query), r):
        rows = slice(i, min(i + r, len(query)))
        t = place(room, rows.stop - i, *key.shape)
        yield rows, torch.add(query[rows, None], key, out=t).tanh_()


def scores(at: Terms, block: Block, place_of_scores: Tensor, room: Tensor) -> Tensor:
    """The scores [1 n M] of a block."""
    S = place(place_of_scores, 1, block.rows.stop - block.rows.start, block.keys)
    for rows, t in hidden(at, block, room):
        torch.mv(t.flatten(0, 1), at.w_score, out=S[0, rows].view(-1))
    return masked(S, at.mask, block, causal=False)


def projections_grad(at: Terms, d: Terms, block: Block, dS: Tensor, room: Tensor) -> None:
    """Add the gradients by the weights of the features and, but for these weights, by the projections."""
    one = dS.new_ones(())
    for rows, t in hidden(at, block, room):
        d.w_score.addmv_(t.flatten(0, 1).T, dS[rows].flatten())
        slope = torch.addcmul(one, t, t, value=-1, out=t).mul_(dS[rows].unsqueeze(-1))
        d.query[block.b, block.rows][rows] = slope.sum(1)
        d.key[block.b] += slope.sum(0)
