"""
Attention over a cache: heads that share keys, pages of a pool, numbers of 8 bits, latents.

A program owns a block of rows of one sequence and one head of keys: r heads of queries are its rows
too, for they read the same keys. Key j stands in slot j mod W of the page that the sequence's table
names; what no row of the block sees is not read, its page's entry neither. A product of a page and
its stride is made in 64 bits.

Letters as in the design; X_ are the strides of X. KR and QR are parts of keys and queries beside
those that are values too (rotated ones); KS and VS [Z W G] the scales of what is stored in 8 bits,
WRONG counts pages that are seen and that there are none of.
"""

from typing import Any

import triton.language as tl

from .attention import LOG2E, add_product, finite, product, tile
from .launch import (
    Kernel,
    add_to,
    any_of,
    head_and_last_block,
    largest,
    read,
    rounded,
    strides_of,
    total,
    whole,
)


@Kernel
def up_to(length, longest):
    """Where a loop over the keys of a sequence ends."""
    return length


@up_to.instead
def _(length: Any, longest: Any) -> Any:  # sequences go side by side
    return longest


@Kernel
def tangent(x):
    """tanh: a series where 1 - exp(-2x) would cancel."""
    y = x * x
    small = 62 / 2835 - y * (1382 / 155925)
    small = 1.0 + y * (-1 / 3 + y * (2 / 15 + y * (-17 / 315 + y * small)))
    e = tl.exp(-2.0 * tl.abs(x))
    large = (1.0 - e) / (1.0 + e)
    return tl.where(y < 0.0625, x * small, tl.where(x < 0, -large, large))


@Kernel
def widened(x):
    """
    Numbers of 8 bits: whole ones, or those of float8_e4m3fn, whose exponent and fraction stand in a
    float32 2^120 times too small.
    """
    if x.dtype == tl.int8:
        return x.to(tl.float32)
    else:
        bits = x.to(tl.int32)
        size = ((bits & 0x7F) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36
        size = tl.where((bits & 0x7F) == 0x7F, float("nan"), size)
        return tl.where(bits >= 0x80, -size, size)


@Kernel
def slots(X, x_, i_g, page, slot, at_d, in_m, in_d, XS, xs_, LIKE):
    """Slots of pages [m d] of one head of keys or values, scaled where they have 8 bits."""
    at = page * x_[0] + slot * x_[1]
    x = tile(X + i_g * x_[2], at, at_d, 1, x_[3], in_m, in_d)
    if XS is None:
        return x
    else:
        scale = read(XS + page * xs_[0] + slot * xs_[1] + i_g * xs_[2], in_m).to(tl.float32)
        return rounded(widened(x) * scale[:, None], LIKE)


@Kernel
def shown(position, at_m, there, left, right, chunk, pinned, CAUSAL: tl.constexpr):
    """Which keys [1 m] the rows at these positions [n 1] see, of those that are there."""
    visible = there
    if CAUSAL:
        visible = visible & (at_m <= position)
    if left is not None:
        visible = visible & ((at_m >= position - left) | (at_m < pinned))
    if right is not None:
        visible = visible & (at_m <= position + right)
    if chunk is not None:
        start = position - ((position % chunk) + chunk) % chunk
        visible = visible & (at_m >= start) & (at_m < start + chunk)
    return visible


@Kernel
def take_values(out, p, v, visible, LIKE):
    """Output so far with a block of values; what is no number reaches those who see it alone."""
    bad = (tl.abs(v.to(tl.float32)) < float("inf")) == 0
    out = add_product(out, p, finite(v))
    if any_of(bad):
        seen, lost = tl.where(visible, 1.0, 0.0), tl.where(bad, 1.0, 0.0)
        seen = product(rounded(seen, LIKE), rounded(lost, LIKE))
        out += tl.where(seen > 0.0, product(p, v), 0.0)
    return out


@Kernel
def cached_forward(
    Q, QR, K, KR, V, SINK, KS, VS, OUT, LSE, TABLE, FIRST, COUNT, LENGTHS, OFFSETS, WRONG,
    q_, qr_, k_, kr_, v_, ks_, vs_, o_,
    G, r, M, D, F, E, W, Y, Z, scale, cap, left, right, chunk, pinned,
    CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Output [T H E] and log-sum-exp [T H] of a block of rows, by an online softmax."""
    q_, qr_, k_, kr_ = strides_of(q_), strides_of(qr_), strides_of(k_), strides_of(kr_)
    v_, ks_, vs_, o_ = strides_of(v_), strides_of(ks_), strides_of(vs_), strides_of(o_)
    i_head, block = head_and_last_block()
    i_b, i_g = (i_head // G).to(tl.int64), (i_head % G).to(tl.int64)
    length, count = tl.load(LENGTHS + i_b).to(tl.int32), tl.load(COUNT + i_b).to(tl.int32)
    at = block * BLOCK_N + tl.arange(0, BLOCK_N)
    row, head = at // r, i_g * r + at % r
    in_n, position = row < count, tl.load(OFFSETS + i_b).to(tl.int32) + row
    token = tl.load(FIRST + i_b).to(tl.int64) + row
    at_d, at_e, at_f = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_F)
    in_d, in_e, in_f = at_d < D, at_e < E, at_f < F
    q = tile(Q, token * q_[0] + head * q_[1], at_d, 1, q_[2], in_n, in_d)
    if QR is not None:
        qr = tile(QR, token * qr_[0] + head * qr_[1], at_f, 1, qr_[2], in_n, in_f)
    top = tl.full([BLOCK_N], float("-inf"), tl.float32)
    norm = tl.full([BLOCK_N], 0.0, tl.float32)
    if SINK is not None:
        top = tl.load(SINK + head, mask=in_n, other=float("-inf")).to(tl.float32) * LOG2E
        norm = tl.where(top == float("-inf"), 0.0, 1.0)
    out = tl.full([BLOCK_N, BLOCK_E], 0.0, tl.float32)
    for i_m in range(0, whole(up_to(length, M)), BLOCK_M):
        at_m = i_m + tl.arange(0, BLOCK_M)
        there = in_n[:, None] & (at_m < length)[None, :]
        visible = shown(position[:, None], at_m[None, :], there, left, right, chunk, pinned, CAUSAL)
        in_m = largest(visible.to(tl.int32), 0) > 0
        page = tl.load(TABLE + i_b * Y + at_m // W, mask=in_m, other=0).to(tl.int64)
        missing = in_m & ((page < 0) | (page >= Z))
        add_to(WRONG + i_b + at_m * 0, missing.to(tl.int32), missing)
        in_m, slot = in_m & (missing == 0), (at_m % W).to(tl.int64)
        k = slots(K, k_, i_g, page, slot, at_d, in_m, in_d, KS, ks_, Q)
        s = product(q, tl.trans(k))
        if QR is not None:
            kr = tile(KR, page * kr_[0] + slot * kr_[1], at_f, 1, kr_[3], in_m, in_f)
            s = add_product(s, qr, tl.trans(kr))
        s *= scale
        if cap is not None:
            s = cap * tangent(s / cap)
        s = tl.where(visible, s * LOG2E, float("-inf"))
        rise = tl.maximum(top, largest(s, 1))
        level = tl.where(rise == float("-inf"), 0.0, rise)
        p, fade = tl.exp2(s - level[:, None]), tl.exp2(top - level)
        norm, top = norm * fade + total(p, 1), rise
        v = slots(V, v_, i_g, page, slot, at_e, in_m, in_e, VS, vs_, Q)
        seen = visible & (s != float("-inf"))
        out = take_values(out * fade[:, None], rounded(p, Q), v, seen, Q)
    out = tl.where((norm == 0.0)[:, None], 0.0, out / norm[:, None])
    in_o = in_n[:, None] & in_e[None, :]
    at_o = OUT + (token * o_[0] + head * o_[1])[:, None] + at_e.to(tl.int64)[None, :] * o_[2]
    tl.store(at_o, rounded(out, OUT), mask=in_o)
    tl.store(LSE + token * (G * r) + head, (top + tl.log2(norm)) / LOG2E, mask=in_n)
