"""
Attention of inner products in blocks, as operators of PyTorch: with fake implementations for
torch.compile, and computed without one.

``mask`` and ``keep`` have four axes that broadcast to [B H N M]. ``table`` [H W D] and ``bias``
[H W] are position rows, of which the pair (i, j) reads row ``first`` - i + j; ``content`` and
``distance`` [H D] are added to the queries for the one score and the other; ``share`` is
1 / (1 - p). All tensors are of one wide dtype but the masks.
"""

from collections.abc import Iterator
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..isolation import finite
from ..transforms.derivatives import entry_by_entry
from .tiles import (
    Block,
    add_product,
    add_to_mask,
    below,
    blocks,
    exponentials,
    extent,
    masked,
    mixed,
    mixed_seen,
    place,
    scores_grad,
    scores_grad_seen,
    seen_pairs,
)

__all__ = ["Options", "Terms", "attention", "attention_grad"]


class Terms(NamedTuple):
    """The tensors of a score, and the values; what an attention does not have is None."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    keep: Tensor | None
    steep: Tensor | None
    content: Tensor | None
    distance: Tensor | None
    table: Tensor | None
    bias: Tensor | None


class Options(NamedTuple):
    """
    Whether rows are causal, which row of the table the first query reads at the first key, and 1 /
    (1 - p).
    """

    causal: bool
    first: int
    share: float


@torch.library.custom_op("torch_impl::blocked_attention", mutates_args=())
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    keep: Tensor | None,
    steep: Tensor | None,
    content: Tensor | None,
    distance: Tensor | None,
    table: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    first: int,
    share: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [B H N E], and the top and the sum of the exponentials of each row [B H N 1]."""
    at = Terms(query, key, value, mask, keep, steep, content, distance, table, bias)
    options = Options(causal, first, share)
    out = value.new_zeros(*query.shape[:-1], value.shape[-1])
    tops, norms = (out.new_empty(*out.shape[:-1], 1) for _ in range(2))
    rooms = two_rooms(at)
    for block in blocks_of(at, options):
        S, rows = scores(at, options, block, rooms), block.at_rows
        tops[rows], norms[rows] = top, norm = exponentials(S)
        out[rows] = mixed(S, norm, value, keep, block, share)
        if not out[rows].isfinite().all():
            S = below(scores(at, options, block, rooms), top)
            seen = seen_pairs(S, mask, block, causal)
            out[rows] = mixed_seen(S, norm, value, keep, block, share, seen)
    return out, tops, norms


@attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    rows = query.shape[:-1]
    return (
        value.new_empty(*rows, value.shape[-1]),
        value.new_empty(*rows, 1),
        value.new_empty(*rows, 1),
    )


@torch.library.custom_op("torch_impl::blocked_attention_grad", mutates_args=())
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
    steep: Tensor | None,
    content: Tensor | None,
    distance: Tensor | None,
    table: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    first: int,
    share: float,
    mask_too: bool,
) -> list[Tensor]:
    """
    The gradients of query, key, value, mask where it is asked for, content, distance, table and
    bias: of what is None nothing. The scores are computed again.
    """
    at = Terms(query, key, value, mask, keep, steep, content, distance, table, bias)
    options = Options(causal, first, share)
    d = gradients(at, mask_too, out)
    rooms = two_rooms(at)
    lost = not are_finite(out, at.query, at.key, at.table)
    factors = finite_factors(at) if lost else at
    for block in blocks_of(at, options):
        rows = block.at_rows
        S = below(scores(at, options, block, rooms), tops[rows])
        if lost:
            seen = seen_pairs(S, mask, block, causal)
            given = d_output[rows], value, d.value, keep, block, share
            dS = scores_grad_seen(S, norms[rows], *given, seen)
        else:
            d_out = d_output[rows] / norms[rows]
            dS = scores_grad(S, d_out, out[rows], value, d.value, keep, block, share, rooms[1])
        add_to_mask(d.mask, dS, block)
        products_grad(factors, d, options, block, dS, rooms[1])
    return [x for x in d if x is not None]


@attention_grad.register_fake
def _(d_output: Tensor, out: Tensor, tops: Tensor, norms: Tensor, *rest: Any) -> list[Tensor]:
    *tensors, _, _, _, mask_too = rest
    return [x for x in gradients(Terms(*tensors), mask_too, out) if x is not None]


for operator in (attention, attention_grad):
    entry_by_entry(operator)


def are_finite(*tensors: Tensor | None) -> bool:
    """
    Whether no tensor has NaN or infinity. A factor may though the output has none: where the score
    is minus infinity its weight is 0, in a product with others' rows too.
    """
    return all(bool(x.isfinite().all()) for x in tensors if x is not None)


def finite_factors(at: Terms) -> Terms:
    """
    Zeros for what is not finite in the factors of the scores' gradient: a visible pair has carried
    it to that gradient already, and a hidden one must not.
    """
    query, key = finite(at.query), finite(at.key)
    return at._replace(query=query, key=key, table=None if at.table is None else finite(at.table))


def blocks_of(at: Terms, options: Options) -> Iterator[Block]:
    B, H, N = at.query.shape[:3]
    return blocks(B, H, N, at.key.shape[2], options.causal)


def two_rooms(at: Terms) -> Tensor:
    """
    Room for the scores of a block, and for what its position scores and the gradients of its
    weights need besides.
    """
    (B, H, N), M = at.query.shape[:3], at.key.shape[2]
    b, h, n = extent(B, H, N, M)
    return at.query.new_empty(2, b * h * n * (n + M - 1))


def gradients(at: Terms, of_mask: bool, out: Tensor) -> Terms:
    """Zeros in the dtype of the sums, one tensor for each that has a gradient."""
    without = at._replace(mask=at.mask if of_mask else None, keep=None, steep=None)
    return Terms._make(x if x is None else out.new_zeros(x.shape) for x in without)


def scores(at: Terms, options: Options, block: Block, rooms: Tensor) -> Tensor:
    """The scores of a block in the first room."""
    q, key = scaled(at, block, at.content), at.key[block.at_keys]
    S = place(rooms[0], *q.shape[:3], block.keys)
    if at.table is None:
        torch.matmul(q, key.mT, out=S)
    else:
        add_product(S.copy_(position_scores(at, options, block, rooms[1])), q, key.mT)
    if at.steep is not None:
        j = torch.arange(block.keys, dtype=S.dtype, device=S.device)
        S.addcmul_(at.steep[block.heads, None, None], j - j[-q.shape[2] :, None])
    return masked(S, at.mask, block, options.causal)


def scaled(at: Terms, block: Block, plus: Tensor | None) -> Tensor:
    """The queries of a block, plus a bias of each head, over sqrt(D)."""
    q = at.query[block.at_rows]
    return (q if plus is None else q + plus[block.heads, None]) / sqrt(q.shape[-1])


def band(options: Options, block: Block) -> slice:
    """The rows of the table that a block reads, in the order of its last query."""
    first = options.first - (block.rows.stop - 1)
    return slice(first, first + block.rows.stop - block.rows.start + block.keys - 1)


def position_scores(at: Terms, options: Options, block: Block, room: Tensor) -> Tensor:
    """
    The product of the queries with a band of the table, each row of it brought to its pairs.

    One product a head, over all the batch entries. What the pairs that lie beyond the table get is
    anything.
    """
    q, rows = scaled(at, block, at.distance), band(options, block)
    x, flat, table = products(at, q, block, rows, room)
    torch.bmm(of_heads(q), table.mT, out=flat)
    if at.bias is not None:
        flat.add_(at.bias[block.heads, None, rows], alpha=1 / sqrt(q.shape[-1]))
    return diagonals(x, block.keys)


def products(
    at: Terms, q: Tensor, block: Block, rows: slice, room: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """
    Room for products with a band, as [b h n W] and, as far as the table goes, as [h b*n W]; and
    these rows of the table.
    """
    assert at.table is not None  # or there are no positions to ask for
    b, h, n, _ = q.shape
    x, table = place(room, h, b, n, rows.stop - rows.start), at.table[block.heads, rows]
    return x.transpose(0, 1), x.flatten(1, 2)[..., : len(table[0])], table


def diagonals(x: Tensor, keys: int) -> Tensor:
    """
    The view [b h n keys] of x [b h n W], W = n + keys - 1, whose row i starts at column n - 1 - i.
    """
    *heads, n, W = x.shape
    *strides, _, _ = x.stride()
    return x.as_strided((*heads, n, keys), (*strides, W - 1, 1), x.storage_offset() + n - 1)


def products_grad(
    at: Terms, d: Terms, options: Options, block: Block, dS: Tensor, room: Tensor
) -> None:
    """Add the gradients by all factors of the scores."""
    d_query = torch.matmul(dS, at.key[block.at_keys]).div_(sqrt(at.key.shape[-1]))
    add_product(d.key[block.at_keys], dS.mT, scaled(at, block, at.content))
    if d.content is not None:
        d.content[block.heads] += d_query.sum((0, 2))
    if at.table is not None:
        d_query += positions_grad(at, d, options, block, dS, room)
    d.query[block.at_rows] = d_query


def positions_grad(
    at: Terms, d: Terms, options: Options, block: Block, dS: Tensor, room: Tensor
) -> Tensor:
    """
    The gradient by the queries of the position scores; adds those of the table and its biases.
    """
    assert d.table is not None
    q, rows, root = scaled(at, block, at.distance), band(options, block), sqrt(at.query.shape[-1])
    x, flat, table = products(at, q, block, rows, room)
    diagonals(x.zero_(), block.keys).copy_(dS)
    d_query = torch.bmm(flat, table).div_(root)
    d.table[block.heads, rows].baddbmm_(flat.mT, of_heads(q))
    if d.distance is not None:
        d.distance[block.heads] += d_query.sum(1)
    if d.bias is not None:
        d.bias[block.heads, rows] += flat.sum(1).div_(root)
    return d_query.unflatten(1, (-1, q.shape[2])).transpose(0, 1)


def of_heads(x: Tensor) -> Tensor:
    """x [b h n W] as [h b*n W]: what a head has over all the batch."""
    return x.transpose(0, 1).flatten(1, 2)
