"""
Attention of inner products in blocks that stay in a cache: the laws are :mod:`spec.attention`,
:mod:`spec.alibi` and :mod:`spec.relative`.

Written for CPUs: no N x M tensor exists, forwards or backwards, and a block
(:mod:`torch_impl.blocked.attention.tiles`) costs a dozen calls of PyTorch. A block of n queries
reads n + M - 1 consecutive rows of the table of its positions; its product with them stands in
memory so that the shift is a view of it. Half types are computed in float32 and rounded once.
Gradients are those of the first order.
"""

from collections.abc import Iterator
from math import sqrt
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..alibi import check_alibi, slopes
from ..attention import ATTENTION, Keep, Mask, check_options
from ..relative import Visible, check_learned_relative, check_transformer_xl, four_axes
from ..scores import wide
from ..shapes import check
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
    place,
    present,
    scores_grad,
)

__all__ = [
    "alibi_attention_blocked",
    "learned_relative_attention_blocked",
    "scaled_dot_product_attention_blocked",
    "transformer_xl_attention_blocked",
]


def scaled_dot_product_attention_blocked(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Tensor, "B H N E"]:
    """As :func:`spec.attention.scaled_dot_product_attention`."""
    check(ATTENTION, query, key, value)
    check_options(query, key, mask, keep, p)
    return attention(query, key, value, mask, keep, share=1 / (1 - p))


def alibi_attention_blocked(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """As :func:`spec.alibi.alibi_attention`: the distances of one block serve all."""
    check_alibi(query, key, value, visible)
    return attention(
        query, key, value, visible, causal=True, steep=slopes(query.shape[1], query.device)
    )


def transformer_xl_attention_blocked(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    position: Float[Tensor, "H M D"],
    u: Float[Tensor, "H D"],
    v: Float[Tensor, "H D"],
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """As :func:`spec.relative.transformer_xl_attention`: the shift is a view of each block."""
    check_transformer_xl(query, key, value, position, u, v, visible)
    return attention(
        query,
        key,
        value,
        visible,
        causal=True,
        content=u,
        distance=v,
        table=position,
        first=query.shape[2] - 1,
    )


def learned_relative_attention_blocked(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    key_pos_embeddings: Float[Tensor, "2P H D"],
    key_pos_bias: Float[Tensor, "2P H"],
    query_pos_bias: Float[Tensor, "H D"],
    align: str,
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """As :func:`spec.relative.learned_relative_attention`: the shift is a view of each block."""
    check_learned_relative(
        query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align, value, visible
    )
    N, M, P = query.shape[2], key.shape[2], len(key_pos_bias) // 2
    behind = M - N if align == "end" else 0
    rows = slice(
        P - behind - N + 1, P - behind + M
    )  # those that are read; the first query meets the first key at row N - 1 of them
    table, bias = key_pos_embeddings[rows].transpose(0, 1), key_pos_bias[rows].T
    return attention(
        query, key, value, visible, content=query_pos_bias, table=table, bias=bias, first=N - 1
    )


class Terms(NamedTuple):
    """
    The tensors of a score, and the values; what an attention does not have is None. All are of one
    wide dtype but the masks.
    """

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


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    keep: Tensor | None = None,
    causal: bool = False,
    steep: Tensor | None = None,
    content: Tensor | None = None,
    distance: Tensor | None = None,
    table: Tensor | None = None,
    bias: Tensor | None = None,
    first: int = 0,
    share: float = 1.0,
) -> Tensor:
    """
    The output in the dtype of the query; zeros stand in for all that is absent, which may be NaN.
    """
    mask, keep = four_axes(mask), four_axes(keep)
    if there := present(
        mask, query.shape[2], key.shape[2], causal, first, 0 if table is None else table.shape[1]
    ):
        sees, seen, read = there
        query, key, value = query.where(sees, 0), key.where(seen, 0), value.where(seen, 0)
        table = None if table is None else table.where(read, 0)
        bias = None if bias is None else bias.where(read[..., 0], 0)
    q, k, x, content, distance, table, bias = wide(
        query, key, value, content, distance, table, bias
    )
    steep = None if steep is None else steep.to(q.dtype)
    return Blocked.apply(
        Options(causal, first, share), q, k, x, mask, keep, steep, content, distance, table, bias
    ).to(query.dtype)


class Blocked(torch.autograd.Function):
    """Keeps the output and two numbers a row; the backward pass computes the scores again."""

    @staticmethod
    def forward(ctx: Any, options: Options, *tensors: Any) -> Tensor:
        at = Terms(*tensors)
        out = at.value.new_zeros(*at.query.shape[:-1], at.value.shape[-1])
        tops, norms = (out.new_empty(*out.shape[:-1], 1) for _ in range(2))
        rooms = two_rooms(at)
        for block in blocks_of(at, options):
            S, rows = scores(at, options, block, rooms), block.at_rows
            tops[rows], norms[rows] = top, norm = exponentials(S)
            out[rows] = mixed(S, norm, at.value, at.keep, block, options.share)
        ctx.options = options
        ctx.save_for_backward(out, tops, norms, *tensors)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        out, tops, norms, *tensors = ctx.saved_tensors
        at, options = Terms(*tensors), ctx.options
        d = gradients(at, ctx.needs_input_grad[4], out)
        rooms = two_rooms(at)
        for block in blocks_of(at, options):
            rows = block.at_rows
            S, d_out = (
                below(scores(at, options, block, rooms), tops[rows]),
                d_output[rows] / norms[rows],
            )
            dS = scores_grad(
                S, d_out, out[rows], at.value, d.value, at.keep, block, options.share, rooms[1]
            )
            add_to_mask(d.mask, dS, block)
            products_grad(at, d, options, block, dS, rooms[1])
        d_mask = None if d.mask is None or at.mask is None else d.mask.to(at.mask.dtype)
        return None, *d._replace(mask=d_mask)


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
        bias = position_scores(at, at.table, options, block, rooms[1])
        add_product(S.copy_(bias), q, key.mT)
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


def position_scores(
    at: Terms, table: Tensor, options: Options, block: Block, room: Tensor
) -> Tensor:
    """
    The product of the queries with a band of the table, each row of it brought to its pairs.

    One product a head, over all the batch entries. What the pairs that lie beyond the table get is
    anything.
    """
    q, rows = scaled(at, block, at.distance), band(options, block)
    x, flat, part = products(table, q, block, rows, room)
    torch.bmm(of_heads(q), part.mT, out=flat)
    if at.bias is not None:
        flat.add_(at.bias[block.heads, None, rows], alpha=1 / sqrt(q.shape[-1]))
    return diagonals(x, block.keys)


def products(
    table: Tensor, q: Tensor, block: Block, rows: slice, room: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """
    Room for products with a band, as [b h n W] and, as far as the table goes, as [h b*n W]; and
    these rows of the table.
    """
    b, h, n, _ = q.shape
    x, part = place(room, h, b, n, rows.stop - rows.start), table[block.heads, rows]
    return x.transpose(0, 1), x.flatten(1, 2)[..., : len(part[0])], part


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
    if at.table is not None and d.table is not None:
        d_query += positions_grad(at, at.table, d, d.table, options, block, dS, room)
    d.query[block.at_rows] = d_query


def positions_grad(
    at: Terms,
    table: Tensor,
    d: Terms,
    d_table: Tensor,
    options: Options,
    block: Block,
    dS: Tensor,
    room: Tensor,
) -> Tensor:
    """
    The gradient by the queries of the position scores; adds those of the table and its biases.
    """
    q, rows, root = scaled(at, block, at.distance), band(options, block), sqrt(at.query.shape[-1])
    x, flat, part = products(table, q, block, rows, room)
    diagonals(x.zero_(), block.keys).copy_(dS)
    d_query = torch.bmm(flat, part).div_(root)
    d_table[block.heads, rows].baddbmm_(flat.mT, of_heads(q))
    if d.distance is not None:
        d.distance[block.heads] += d_query.sum(1)
    if d.bias is not None:
        d.bias[block.heads, rows] += flat.sum(1).div_(root)
    return d_query.unflatten(1, (-1, q.shape[2])).transpose(0, 1)


def of_heads(x: Tensor) -> Tensor:
    """x [b h n W] as [h b*n W]: what a head has over all the batch."""
    return x.transpose(0, 1).flatten(1, 2)
