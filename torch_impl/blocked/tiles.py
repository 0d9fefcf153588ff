"""
Whole rows of scores, a block of queries at a time: what :mod:`torch_impl.blocked.operators` and
:mod:`torch_impl.blocked.additive_operators` share.

A block is small enough for the second cache of a core, and every operation on it is one large call.
Its scores stand in a room that is used again by the next block, so that what is alive at once grows
with the keys and not with the pairs. Masks and keep have four axes that may be 1; S is a block of
scores [G n M], of G heads, n queries and the M first keys.
"""

from collections.abc import Iterator
from itertools import product
from math import e, log2, prod
from typing import NamedTuple

import torch
from torch import Tensor

from ..isolation import sum_seen
from ..shifts import columns_read
from ..transforms.derivatives import entry_by_entry

ELEMENTS = 2**18
"""Scores in a block: one MiB in float32, half of a cache of two."""
ROWS = 64
LOG2_E = log2(e)


class Block(NamedTuple):
    """
    Some batch entries, some heads, some queries, and so many keys as the last of these queries may
    see.
    """

    batch: slice
    heads: slice
    rows: slice
    keys: int

    @property
    def at_rows(self) -> tuple[slice, ...]:
        return self.batch, self.heads, self.rows

    @property
    def at_keys(self) -> tuple[slice, ...]:
        return self.batch, self.heads, slice(self.keys)


def extent(B: int, H: int, N: int, M: int) -> tuple[int, int, int]:
    """
    How many batch entries, heads and queries a block has: more than one entry only with all of
    their heads.
    """
    n = min(N, ROWS, max(1, ELEMENTS // M))
    G = max(1, ELEMENTS // (n * M))
    return min(B, max(1, G // H)), min(H, G), n


def blocks(B: int, H: int, N: int, M: int, causal: bool) -> Iterator[Block]:
    """
    All blocks, those that share their keys in a row. Causal queries that stand before the first key
    are in none.
    """
    b, h, n = extent(B, H, N, M)
    for batch, heads in product(pieces(0, B, b), pieces(0, H, h)):
        for rows in pieces(max(0, N - M) if causal else 0, N, n):
            yield Block(batch, heads, rows, M - N + rows.stop if causal else M)


def pieces(first: int, last: int, size: int) -> Iterator[slice]:
    return (slice(i, min(i + size, last)) for i in range(first, last, size))


def place(room: Tensor, *shape: int) -> Tensor:
    """A tensor of that shape at the beginning of the room; what was there is lost."""
    return room[: prod(shape)].view(shape)


def part(x: Tensor, block: Block) -> Tensor:
    """What a mask says of a block, with four axes that may be 1."""
    wanted = (*block.at_rows, slice(block.keys))
    return x[
        tuple(at if size > 1 else slice(None) for at, size in zip(wanted, x.shape, strict=True))
    ]


def masked(S: Tensor, mask: Tensor | None, block: Block, causal: bool) -> Tensor:
    """
    S with a float mask added and -inf for what is hidden, in place. What is hidden may be NaN
    before.
    """
    if mask is not None:
        here = part(mask, block)
        if here.dtype == torch.bool:
            S.masked_fill_(~here, -torch.inf)
        else:
            S.add_(here).masked_fill_(here == -torch.inf, -torch.inf)
    if causal and (n := S.shape[-2]) > 1:
        S[..., -n:].masked_fill_(
            torch.ones(n, n, dtype=torch.bool, device=S.device).triu_(1), -torch.inf
        )
    return S


def exponentials(S: Tensor) -> tuple[Tensor, Tensor]:
    """
    exp(S - top) in place of S, with the tops and the sums of its rows. A row without keys has a
    finite top, zeros and the sum 1.
    """
    top = S.amax(-1, keepdim=True).clamp_(min=torch.finfo(S.dtype).min)
    return top, below(S, top).sum(-1, keepdim=True).clamp_(
        min=1
    )  # a row with keys has exp(0) in its sum


def below(S: Tensor, top: Tensor) -> Tensor:
    """
    exp(S - top) in place of S, and 0 where this is subnormal.

    On a CPU subnormal factors cost a product of matrices ten times its time, and PyTorch's exp,
    unlike its exp2, a hundred.
    """
    S.sub_(top).mul_(LOG2_E).exp2_()
    return torch.threshold_(S, torch.finfo(S.dtype).tiny, 0.0)


def mixed(
    S: Tensor, norm: Tensor, value: Tensor, keep: Tensor | None, block: Block, share: float
) -> Tensor:
    """
    The rows of the output, from the exponentials and their sums. S is lost where some are dropped.
    """
    if keep is not None:
        S.mul_(part(keep, block))
    return torch.matmul(S, value[block.at_keys]).mul_(share).div_(norm)


def scores_grad(
    S: Tensor,
    d_out: Tensor,
    out: Tensor,
    value: Tensor,
    d_value: Tensor,
    keep: Tensor | None,
    block: Block,
    share: float,
    room: Tensor,
) -> Tensor:
    """
    The gradient of the scores in place of their exponentials S; adds to the gradient of the values.

    ``d_out`` is already divided by the sums of the rows, so that S needs no division.
    """
    delta = (d_out * out).sum(-1, keepdim=True)
    d_out = d_out * share
    spare = place(room, *S.shape)
    kept = S if keep is None else torch.mul(S, part(keep, block), out=spare)
    add_product(d_value[block.at_keys], kept.mT, d_out)
    d_weights = torch.matmul(d_out, value[block.at_keys].mT, out=spare)
    if keep is not None:
        d_weights.mul_(part(keep, block))
    return S.mul_(d_weights.sub_(delta))


def seen_pairs(like: Tensor, mask: Tensor | None, block: Block, causal: bool = False) -> Tensor:
    """Which pairs of a block see each other, in the shape of its scores."""
    return masked(torch.zeros_like(like), mask, block, causal) != -torch.inf


def weights_seen(S: Tensor, norm: Tensor, seen: Tensor) -> Tensor:
    """The weights of exponentials: 0 where hidden, also in a row that is no number."""
    return (S / norm).masked_fill_(~seen, 0)


def mixed_seen(
    S: Tensor,
    norm: Tensor,
    value: Tensor,
    keep: Tensor | None,
    block: Block,
    share: float,
    seen: Tensor,
) -> Tensor:
    """As :func:`mixed`, where what some rows see is not finite and must not reach the others."""
    weights = weights_seen(S, norm, seen) * share
    if keep is not None:
        weights = weights.where(part(keep, block), 0)
    return sum_seen(weights, seen, value[block.at_keys])


def scores_grad_seen(
    S: Tensor,
    norm: Tensor,
    d_out: Tensor,
    value: Tensor,
    d_value: Tensor,
    keep: Tensor | None,
    block: Block,
    share: float,
    seen: Tensor,
) -> Tensor:
    """As :func:`scores_grad`, likewise; ``d_out`` is not divided."""
    weights, d_out = weights_seen(S, norm, seen), d_out * share
    kept = seen if keep is None else seen & part(keep, block)
    add_product(d_value[block.at_keys], weights.where(kept, 0).mT, d_out)
    d_weights = torch.matmul(d_out, value[block.at_keys].mT).where(kept, 0)
    delta = (weights * d_weights).sum(-1, keepdim=True)
    return (weights * (d_weights - delta)).masked_fill_(~seen, 0)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to a part of a tensor with four axes."""
    total.view(-1, *total.shape[2:]).baddbmm_(a.flatten(0, 1), b.flatten(0, 1))


def add_to_mask(d_mask: Tensor | None, dS: Tensor, block: Block) -> None:
    """
    The gradient of a float mask: that of the scores, summed over the axes along which the mask was
    broadcast.
    """
    if d_mask is not None:
        here = part(d_mask, block)
        here.add_(dS.sum_to_size(here.shape))


@torch.library.custom_op("torch_impl::blocked_present", mutates_args=())
def present(
    mask: Tensor, N: int, M: int, causal: bool, first: int, W: int
) -> tuple[Tensor, Tensor, Tensor]:
    """
    Which queries see a key [B H N 1], which keys are seen [B H M 1], and which of the W rows of a
    table are read [H W 1].

    The pair (i, j) reads row first + j - i. B and H are those of the mask, and may be 1.
    """
    sees, seen = [], mask.new_zeros(*mask.shape[:2], M, dtype=torch.bool)
    read = mask.new_zeros(mask.shape[1], W, dtype=torch.bool)
    for i in range(0, N, ROWS):
        n = min(ROWS, N - i)
        rows = (mask[:, :, i : i + n] if mask.shape[2] > 1 else mask).expand(-1, -1, n, M)
        visible = rows if rows.dtype == torch.bool else rows != -torch.inf
        if causal:
            visible = visible.tril(M - N + i)
        sees.append(visible.any(-1, keepdim=True))
        seen |= visible.any(-2)
        if W:
            from_row = first - i - n + 1
            here = read[:, from_row : from_row + n + M - 1]
            here |= columns_read(visible.any(0), n + M)[:, 1 : 1 + here.shape[1]]
    return torch.cat(sees, -2), seen.unsqueeze(-1), read.unsqueeze(-1)


@present.register_fake
def _(
    mask: Tensor, N: int, M: int, causal: bool, first: int, W: int
) -> tuple[Tensor, Tensor, Tensor]:
    b, h = mask.shape[:2]
    shapes = (b, h, N, 1), (b, h, M, 1), (h, W, 1)
    sees, seen, read = (mask.new_empty(shape, dtype=torch.bool) for shape in shapes)
    return sees, seen, read


entry_by_entry(present)
