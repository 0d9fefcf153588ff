"""
Additive attention in blocks, as operators of PyTorch: with fake implementations for torch.compile,
and computed without one.

The hidden layer of a few queries at a time, [n M A], is made in one room, of exponentials that are
taken before. All tensors are of one wide dtype but the masks.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..transforms.derivatives import entry_by_entry
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
    mixed_seen,
    pieces,
    place,
    scores_grad,
    scores_grad_seen,
    seen_pairs,
)

__all__ = ["Terms", "attention", "attention_grad"]


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


@torch.library.custom_op("torch_impl::blocked_additive_attention", mutates_args=())
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    keep: Tensor | None,
    w_score: Tensor,
    share: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [B 1 N E], and the top and the sum of the exponentials of each row [B 1 N 1]."""
    at = Terms(query, key, value, mask, keep, w_score)
    out, tops, norms = attention_fake(query, key, value)
    rooms, room = three_rooms(at)
    for block in blocks_of(at):
        S, rows = scores(at, block, rooms[0], room), block.at_rows
        tops[rows], norms[rows] = top, norm = exponentials(S)
        out[rows] = mixed(S, norm, value, keep, block, share)
        if not out[rows].isfinite().all():
            S = below(scores(at, block, rooms[0], room), top)
            out[rows] = mixed_seen(S, norm, value, keep, block, share, seen_pairs(S, mask, block))
    return out, tops, norms


@attention.register_fake
def attention_fake(
    query: Tensor, key: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    rows = query.shape[:-1]
    widths = value.shape[-1], 1, 1
    out, tops, norms = (value.new_empty(*rows, width) for width in widths)
    return out, tops, norms


@torch.library.custom_op("torch_impl::blocked_additive_attention_grad", mutates_args=())
def attention_grad(
    d_output: Tensor,
    out: Tensor,
    tops: Tensor,
    norms: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    keep: Tensor | None,
    w_score: Tensor,
    share: float,
    mask_too: bool,
) -> list[Tensor]:
    """
    The gradients of query, key, value, mask where it is asked for, and w_score; the hidden layer is
    computed again.
    """
    at = Terms(query, key, value, mask, keep, w_score)
    d = gradients(at, mask_too, out)
    rooms, room = three_rooms(at)
    lost = not out.isfinite().all()
    for block in blocks_of(at):
        rows = block.at_rows
        S = below(scores(at, block, rooms[0], room), tops[rows])
        if lost:
            seen = seen_pairs(S, mask, block)
            given = d_output[rows], value, d.value, keep, block, share
            dS = scores_grad_seen(S, norms[rows], *given, seen)
        else:
            seen = None
            d_out = d_output[rows] / norms[rows]
            dS = scores_grad(S, d_out, out[rows], value, d.value, keep, block, share, rooms[1])
        add_to_mask(d.mask, dS, block)
        projections_grad(at, d, block, dS, room, seen)
    d.query.mul_(w_score)
    d.key.mul_(w_score)
    return [x for x in d if x is not None]


@attention_grad.register_fake
def _(d_output: Tensor, out: Tensor, tops: Tensor, norms: Tensor, *rest: Any) -> list[Tensor]:
    *tensors, _, mask_too = rest
    return [x for x in gradients(Terms(*tensors), mask_too, out) if x is not None]


for operator in (attention, attention_grad):
    entry_by_entry(operator)


def gradients(at: Terms, of_mask: bool, out: Tensor) -> Terms:
    """Zeros in the dtype of the sums, one tensor for each that has a gradient."""
    wanted = at._replace(mask=at.mask if of_mask else None, keep=None)
    return Terms._make(x if x is None else out.new_zeros(x.shape) for x in wanted)


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
    tangents = tangents_of_sums
    if all(bool(x.abs().max() <= SMALL) for x in (query, key)):
        query, key, tangents = (2 * query).exp(), (2 * key).exp(), tangents_of_products
    for b in range(len(query)):
        for rows in pieces(0, query.shape[2], len(room) // key[b].numel()):
            t = place(room, rows.stop - rows.start, *key.shape[2:])
            yield (b, 0, rows), tangents(query[b, 0, rows, None], key[b, 0], t)


SMALL = 43.0
"""
Terms whose exponentials are normal numbers of float32. A product of two may leave it: a tangent of
1 or -1 comes of that, as it has to.
"""


def tangents_of_products(query: Tensor, key: Tensor, room: Tensor) -> Tensor:
    """
    1 - 2 / (1 + e^2q e^2k), of exponentials that are there: PyTorch's tanh costs as much as thirty
    multiplications, which is nearly all of the time.
    """
    shares = torch.mul(query, key, out=room).add_(1).reciprocal_()
    return torch.add(shares.new_ones(()), shares, alpha=-2, out=shares)


def tangents_of_sums(query: Tensor, key: Tensor, room: Tensor) -> Tensor:
    return torch.add(query, key, out=room).tanh_()


def scores(at: Terms, block: Block, place_of_scores: Tensor, room: Tensor) -> Tensor:
    """The scores of a block, [b 1 n M]."""
    S = place(place_of_scores, *at.query[block.at_rows].shape[:3], block.keys)
    for here, t in hidden(at, block, room):
        torch.mv(t.flatten(0, 1), at.w_score, out=S[here].view(-1))
    return masked(S, at.mask, block, causal=False)


def projections_grad(
    at: Terms, d: Terms, block: Block, dS: Tensor, room: Tensor, seen: Tensor | None
) -> None:
    """
    Add the gradients by the weights of the features and, but for these weights, by the projections;
    over the pairs that are ``seen``, where features may be no numbers.
    """
    d_query, d_key, one = d.query[block.at_rows], d.key[block.at_keys], dS.new_ones(())
    for here, t in hidden(at, block, room):
        ds = dS[here]
        if seen is not None:
            t.masked_fill_(~seen[here].unsqueeze(-1), 0)
        d.w_score.addmv_(t.flatten(0, 1).T, ds.view(-1))
        slope = torch.addcmul(one, t, t, value=-1, out=t)
        d_query[here] = torch.bmm(ds.unsqueeze(1), slope).squeeze(1)
        for row, by_row in zip(slope, ds.unsqueeze(-1), strict=True):
            d_key[here[:2]].addcmul_(row, by_row)
