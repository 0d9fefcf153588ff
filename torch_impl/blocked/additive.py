"""
Additive attention in blocks that stay in a cache: the law is :mod:`spec.attention`.

Written for CPUs, as :mod:`torch_impl.blocked.attention` is: no N x M tensor exists, let alone one
of N x M x A. The hidden layer of a few queries at a time, [n M A], is made in one room, where
PyTorch's tanh, vectorised, costs no more than a division. Half types are computed in float32 and
rounded once.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..attention import ADDITIVE_ATTENTION, Keep, Mask, check_options
from ..scores import wide
from ..shapes import check
from .tiles import (
    ELEMENTS,
    Block,
    add_to_mask,
    below,
    blocks,
    exponentials,
    extent,
    masked,
    mixed,
    pieces,
    place,
    present,
    scores_grad,
)

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
    q, k, x = (y.unsqueeze(1) for y in (F.linear(q, w_query), F.linear(k, w_key), x))
    return (
        BlockedAdditive.apply(1 / (1 - p), q, k, x, mask, keep, w_score).squeeze(1).to(query.dtype)
    )


def one_head(mask: Tensor | None) -> Tensor | None:
    """A mask of up to three axes with four, of one head."""
    return None if mask is None else mask[(None,) * (3 - mask.ndim)].unsqueeze(1)


class Terms(NamedTuple):
    """
    Projected queries [B 1 N A] and keys [B 1 M A], values, masks, all of one head; and the weights
    of the features.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    keep: Tensor | None
    w_score: Tensor


class BlockedAdditive(torch.autograd.Function):
    """Keeps the output and two numbers a row; the backward pass computes the hidden layer again."""

    @staticmethod
    def forward(ctx: Any, share: float, *tensors: Any) -> Tensor:
        at = Terms(*tensors)
        out = at.value.new_empty(*at.query.shape[:-1], at.value.shape[-1])
        tops, norms = (out.new_empty(*out.shape[:-1], 1) for _ in range(2))
        rooms, room = three_rooms(at)
        for block in blocks_of(at):
            S, rows = scores(at, block, rooms[0], room), block.at_rows
            tops[rows], norms[rows] = top, norm = exponentials(S)
            out[rows] = mixed(S, norm, at.value, at.keep, block, share)
        ctx.share = share
        ctx.save_for_backward(out, tops, norms, *tensors)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        out, tops, norms, *tensors = ctx.saved_tensors
        at, share = Terms(*tensors), ctx.share
        wanted = at._replace(mask=at.mask if ctx.needs_input_grad[4] else None, keep=None)
        d = Terms._make(x if x is None else out.new_zeros(x.shape) for x in wanted)
        rooms, room = three_rooms(at)
        for block in blocks_of(at):
            rows = block.at_rows
            S, d_out = (
                below(scores(at, block, rooms[0], room), tops[rows]),
                d_output[rows] / norms[rows],
            )
            dS = scores_grad(
                S, d_out, out[rows], at.value, d.value, at.keep, block, share, rooms[1]
            )
            add_to_mask(d.mask, dS, block)
            projections_grad(at, d, block, dS, room)
        d.query.mul_(at.w_score)
        d.key.mul_(at.w_score)
        d_mask = None if d.mask is None or at.mask is None else d.mask.to(at.mask.dtype)
        return None, *d._replace(mask=d_mask)


def blocks_of(at: Terms) -> Iterator[Block]:
    B, H, N = at.query.shape[:3]
    return blocks(B, H, N, at.key.shape[2], causal=False)


def three_rooms(at: Terms) -> tuple[Tensor, Tensor]:
    """
    Room twice for the scores of a block, and for the hidden layer of as many queries as fit into a
    cache.
    """
    (B, _, N, A), M = at.query.shape, at.key.shape[2]
    b, _, n = extent(B, 1, N, M)
    return at.query.new_empty(2, b * n * M), at.query.new_empty(
        min(n, max(1, ELEMENTS // (M * A))) * M * A
    )


def hidden(
    at: Terms, block: Block, room: Tensor
) -> Iterator[tuple[tuple[int, int, slice], Tensor]]:
    """
    The hidden layer [r M A] of some queries of a block after the other, in the same room, and their
    place in the block.
    """
    query, key = at.query[block.at_rows], at.key[block.at_keys]
    for b in range(len(query)):
        for rows in pieces(0, query.shape[2], len(room) // key[b].numel()):
            t = place(room, rows.stop - rows.start, *key.shape[2:])
            yield (b, 0, rows), torch.add(query[b, 0, rows, None], key[b, 0], out=t).tanh_()


def scores(at: Terms, block: Block, place_of_scores: Tensor, room: Tensor) -> Tensor:
    """The scores of a block, [b 1 n M]."""
    S = place(place_of_scores, *at.query[block.at_rows].shape[:3], block.keys)
    for here, t in hidden(at, block, room):
        torch.mv(t.flatten(0, 1), at.w_score, out=S[here].view(-1))
    return masked(S, at.mask, block, causal=False)


def projections_grad(at: Terms, d: Terms, block: Block, dS: Tensor, room: Tensor) -> None:
    """
    Add the gradients by the weights of the features and, but for these weights, by the projections.
    """
    d_query, d_key, one = d.query[block.at_rows], d.key[block.at_keys], dS.new_ones(())
    for here, t in hidden(at, block, room):
        ds = dS[here]
        d.w_score.addmv_(t.flatten(0, 1).T, ds.view(-1))
        slope = torch.addcmul(one, t, t, value=-1, out=t)
        d_query[here] = torch.bmm(ds.unsqueeze(1), slope).squeeze(1)
        for row, by_row in zip(slope, ds.unsqueeze(-1), strict=True):
            d_key[here[:2]].addcmul_(row, by_row)
