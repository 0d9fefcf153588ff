"""
Relative positions: which row of a table a pair reads, without an index for each pair.

The pair (i, j) reads row ``first`` - i + j of a table R with a bias S. A block of B queries and one
of B keys read a band of 2 B - 1 rows: pair (i, j) of the blocks its column B - 1 - i + j. The band
is two blocks of rows, the second of which is the first of the next block of keys. In half blocks::

    rows       | b0 b1 | b2 b3 |
    i <  B / 2      [ b1   b2   b3 ]    what row i reads begins B / 2 - 1 - i % (B / 2) columns
    i >= B / 2   [ b0   b1   b2 ]       into the first of three half blocks, and is two of them long

So every half block of a row is turned to the left by that number, and what comes around the end
belongs to the half block before. A turn is one shuffle a score: half a block is as wide as a warp,
or less. A block is turned as four quarters beside each other, [B/2 4 B/2].

Triton's interpreter has no shuffles to save: it turns whole blocks by one column a row.
"""

from typing import Any

import triton.language as tl

from .launch import Kernel, made_anew


@Kernel
def turn_of_row(HALF: tl.constexpr):
    """How many columns of its first half block a row does not read."""
    return (HALF - 1 - tl.arange(0, HALF))[:, None]


@Kernel
def came_around(HALF: tl.constexpr):
    """Which columns of a turned half block were in front: they belong to the half block before."""
    return tl.arange(0, HALF)[None, :] + turn_of_row(HALF) >= HALF


@Kernel
def turned(x, by, BLOCK: tl.constexpr):
    """
    The quarters of a block, each row turned to the left by so many columns: upper left, upper
    right, lower left, lower right.
    """
    HALF: tl.constexpr = BLOCK // 2
    x = tl.permute(tl.reshape(x, [2, HALF, 2, HALF]), (1, 0, 2, 3))
    at = (tl.arange(0, HALF)[None, :] + by + made_anew(HALF)) % HALF
    at = tl.broadcast_to(at[:, None, :], [HALF, 4, HALF])
    x = tl.reshape(tl.gather(tl.reshape(x, [HALF, 4, HALF]), at, 2), [HALF, 2, 2, HALF])
    left, right = tl.split(tl.permute(x, (0, 3, 1, 2)))
    upper_left, lower_left = tl.split(left)
    upper_right, lower_right = tl.split(right)
    return upper_left, upper_right, lower_left, lower_right


@Kernel
def join_quarters(upper_left, upper_right, lower_left, lower_right, BLOCK: tl.constexpr):
    """The block of four quarters."""
    x = tl.join(tl.join(upper_left, lower_left), tl.join(upper_right, lower_right))
    return tl.reshape(tl.permute(x, (2, 0, 3, 1)), [BLOCK, BLOCK])


@Kernel
def pair_scores(before, after, BLOCK: tl.constexpr):
    """What a block of pairs reads of two neighbouring blocks of rows, both turned."""
    around = came_around(BLOCK // 2)
    _, right, lower_left, lower_right = before
    next_left, next_right, next_lower_left, _ = after
    return join_quarters(
        tl.where(around, next_left, right),
        tl.where(around, next_right, next_left),
        tl.where(around, lower_right, lower_left),
        tl.where(around, next_lower_left, lower_right),
        BLOCK,
    )


@Kernel
def turned_to_pairs(g, BLOCK: tl.constexpr):
    """The scores of a block of rows, turned to where pairs read them."""
    return turned(g, turn_of_row(BLOCK // 2), BLOCK)


@turned_to_pairs.instead
def _(g: Any, BLOCK: int) -> Any:
    at = tl.arange(0, BLOCK)
    return tl.gather(g, (at[None, :] - at[:, None] - 1 + BLOCK) % BLOCK, 1)


@pair_scores.instead
def _(before: Any, after: Any, BLOCK: int) -> Any:
    at = tl.arange(0, BLOCK)
    return tl.where(at[None, :] <= at[:, None], before, after)


@Kernel
def pair_scores_at_once(before, after, BLOCK: tl.constexpr):
    """The same of two blocks that are not turned: they are joined first, and turned as one."""
    at, around = tl.arange(0, BLOCK), came_around(BLOCK // 2)
    joined = tl.where(at[None, :] >= BLOCK - 1 - at[:, None], before, after)
    left, right, lower_left, lower_right = turned_to_pairs(joined, BLOCK)
    return join_quarters(
        tl.where(around, left, right),
        tl.where(around, right, left),
        tl.where(around, lower_right, lower_left),
        tl.where(around, lower_left, lower_right),
        BLOCK,
    )


@pair_scores_at_once.instead
def _(before: Any, after: Any, BLOCK: int) -> Any:
    at = tl.arange(0, BLOCK)
    joined = tl.where(at[None, :] >= BLOCK - 1 - at[:, None], before, after)
    return tl.gather(joined, (at[None, :] - at[:, None] - 1 + BLOCK) % BLOCK, 1)


@Kernel
def bits(x):
    """Numbers of 16 bits as whole numbers of 32."""
    return x.to(tl.uint16, bitcast=True).to(tl.uint32)


@Kernel
def nothing_before(LIKE, BLOCK: tl.constexpr):
    """What :func:`rows_of_pairs` is given before the first block of pairs."""
    if LIKE.dtype.primitive_bitwidth == 16:
        return tl.full([BLOCK // 2, 2, BLOCK // 2], 0, tl.uint32)
    else:
        return tl.full([BLOCK, BLOCK], 0.0, LIKE.dtype)


@Kernel
def rows_of_pairs(x, before, BLOCK: tl.constexpr):
    """
    What a block of pairs and the one before it give to the block of rows that both have read: row i
    is turned to the left by i + 1 columns. And this block for the next, turned.

    Of 16 bits, the halves of a row are turned as one number: a shuffle for two scores.
    """
    if x.dtype.primitive_bitwidth == 16:
        HALF: tl.constexpr = BLOCK // 2
        at = tl.arange(0, HALF)[None, :] + tl.arange(0, HALF)[:, None] + made_anew(1)
        left, right = tl.split(tl.permute(tl.reshape(x, [2, HALF, 2, HALF]), (1, 0, 3, 2)))
        both = bits(left) | (bits(right) << 16)
        both = tl.gather(both, tl.broadcast_to((at % HALF)[:, None, :], both.shape), 2)
        lower = (tl.arange(0, 2) == 1)[None, :, None]
        around = (at >= HALF)[:, None, :]
        both = tl.where(around != lower, (both << 16) | (both >> 16), both)
        ours = tl.where(
            around, tl.where(lower, 0xFFFFFFFF, 0xFFFF0000), tl.where(lower, 0xFFFF0000, 0)
        ).to(tl.uint32)
        rows = (both & ours) | (before & ~ours)
        rows = tl.permute(tl.join(rows.to(tl.uint16), (rows >> 16).to(tl.uint16)), (1, 0, 3, 2))
        return tl.reshape(rows, [BLOCK, BLOCK]).to(x.dtype, bitcast=True), both
    else:
        at = tl.arange(0, BLOCK)
        at = at[None, :] + at[:, None] + 1
        turned = tl.gather(x, at % BLOCK, 1)
        return tl.where(at >= BLOCK, turned, before), turned


@nothing_before.instead
def _(LIKE: Any, BLOCK: int) -> Any:
    return tl.full([BLOCK, BLOCK], 0.0, LIKE.dtype)


@rows_of_pairs.instead
def _(x: Any, before: Any, BLOCK: int) -> Any:
    at = tl.arange(0, BLOCK)
    at = at[None, :] + at[:, None] + 1
    turned = tl.gather(x, at % BLOCK, 1)
    return tl.where(at >= BLOCK, turned, before), turned
