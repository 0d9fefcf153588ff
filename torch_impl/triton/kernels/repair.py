"""
What only some rows see is kept from the others, after the kernels that do not look.

A weight of 0 times a value that is no number is NaN, so that such a value reaches every row of the
block of queries that meets it. A program of these kernels reads the output of one block and returns
at once where it is finite. Where it is not, the block is computed again, from the scores and their
log-sum-exp, with 0 in place of values that are no numbers; it is written where a row sees none of
these, and everything else is left as it is. The weights are divided by their sum once more: the
log-sum-exp of large scores is rounded by more than a bound allows. Arguments and letters are those
of the forward kernels.
"""

import triton.language as tl

from .additive import lost_of_weights
from .additive import scores as additive_scores
from .attention import (
    LOG2E,
    add_product,
    band,
    biased,
    finite,
    joined,
    kept,
    of_head,
    product,
    tile,
)
from .bands import pair_scores_at_once
from .launch import (
    Kernel,
    any_of,
    head_and_last_block,
    rounded,
    strides_of,
    total,
    whole,
)


@Kernel
def is_lost(OUT, o_, at_n, at_e, in_n, in_e):
    """Which elements of a block of the output are no numbers."""
    o = tile(OUT, at_n, at_e, o_[2], o_[3], in_n, in_e)
    return (tl.abs(o.to(tl.float32)) < float("inf")) == 0


@Kernel
def take_values(
    out, norm, met, s, visible, lse, KEEP, keep_, V, v_, at_n, at_m, at_e, in_e, N, M,
):  # fmt: skip
    """
    Output so far, the sum of its weights, and how many values that are no numbers its elements see,
    with one more block.
    """
    p = tl.where(visible, tl.exp2(s - lse[:, None]), 0.0)
    norm += total(p, 1)
    if KEEP is not None:
        p = tl.where(kept(KEEP, keep_, at_n[:, None], at_m[None, :], N, M), p, 0.0)
    v = tile(V, at_m, at_e, v_[2], v_[3], at_m < M, in_e)
    bad = tl.where(tl.abs(v.to(tl.float32)) < float("inf"), 0.0, 1.0)
    seen = tl.where(visible, 1.0, 0.0)
    met = add_product(met, rounded(seen, V), rounded(bad, V))
    return add_product(out, rounded(p, V), finite(v)), norm, met


@Kernel
def write_lost(OUT, o_, at_n, at_e, lost, met, out, norm, share):
    """Store the elements that were lost and see nothing but numbers."""
    out = tl.where((norm == 0.0)[:, None], 0.0, out * share / norm[:, None])
    at = OUT + at_n.to(tl.int64)[:, None] * o_[2] + at_e.to(tl.int64)[None, :] * o_[3]
    tl.store(at, rounded(out, OUT), mask=lost & (met == 0.0))


@Kernel
def repair(
    Q, K, V, OUT, LSE, MASK, KEEP, SLOPES, U, W, R, S,
    q_, k_, v_, o_, mask_, keep_, r_,
    H, N, M, D, E, rows, first, scale, share,
    CAUSAL: tl.constexpr, HIDING: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """A block of queries of an attention by scaled inner products."""
    q_, k_, v_, o_ = strides_of(q_), strides_of(k_), strides_of(v_), strides_of(o_)
    mask_, keep_, r_ = strides_of(mask_), strides_of(keep_), strides_of(r_)
    i_head, block = head_and_last_block()
    i_b, i_h, i_n = (i_head // H).to(tl.int64), (i_head % H).to(tl.int64), block * BLOCK_N
    at_n, at_d, at_e = i_n + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    in_n, in_d, in_e = at_n < N, at_d < D, at_e < E
    OUT = of_head(OUT, o_, i_b, i_h)
    lost = is_lost(OUT, o_, at_n, at_e, in_n, in_e)
    if any_of(lost):
        lse = tl.load(LSE + (i_b * H + i_h) * N + at_n, mask=in_n, other=0.0)
        q = tile(of_head(Q, q_, i_b, i_h), at_n, at_d, q_[2], q_[3], in_n, in_d)
        qu, qw = joined(q, U, i_h * D + at_d, in_d), joined(q, W, i_h * D + at_d, in_d)
        if MASK is not None:
            MASK = of_head(MASK, mask_, i_b, i_h)
        if KEEP is not None:
            KEEP = of_head(KEEP, keep_, i_b, i_h)
        if R is not None:
            R = of_head(R, r_, 0, i_h)
        if S is not None:
            S += i_h * rows
        low = first - i_n - (BLOCK_N - 1)
        norm = tl.full([BLOCK_N], 0.0, tl.float32)
        out = tl.full([BLOCK_N, BLOCK_E], 0.0, tl.float32)
        met = tl.full([BLOCK_N, BLOCK_E], 0.0, tl.float32)
        stop = M
        if CAUSAL:
            stop = tl.minimum(M, i_n + BLOCK_N + (M - N))
        for i_m in range(0, whole(stop), BLOCK_M):
            at_m = i_m + tl.arange(0, BLOCK_M)
            k = tile(of_head(K, k_, i_b, i_h), at_m, at_d, k_[2], k_[3], at_m < M, in_d)
            if R is not None:
                before = band(qw, R, S, r_, low + i_m, rows, at_d, in_d, BLOCK_N)
                after = band(qw, R, S, r_, low + i_m + BLOCK_M, rows, at_d, in_d, BLOCK_N)
                s = add_product(pair_scores_at_once(before, after, BLOCK_N), qu, tl.trans(k))
            else:
                s = product(qu, tl.trans(k))
            s, visible = biased(
                s * (scale * LOG2E), at_n[:, None], at_m[None, :],
                SLOPES, MASK, mask_, i_h, N, M, CAUSAL,
            )  # fmt: skip
            out, norm, met = take_values(
                out, norm, met, s, visible, lse, KEEP, keep_, of_head(V, v_, i_b, i_h), v_,
                at_n, at_m, at_e, in_e, N, M,
            )  # fmt: skip
        write_lost(OUT, o_, at_n, at_e, lost, met, out, norm, share)


@Kernel
def additive_repair(
    ZQ, ZK, XQ, XK, WS, V, OUT, LSE, MASK, KEEP, v_, o_, mask_, keep_, rows_n, rows_m, N, M, A, E,
    share, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """A block of queries of an additive attention."""
    v_, o_, mask_, keep_ = strides_of(v_), strides_of(o_), strides_of(mask_), strides_of(keep_)
    i_b, i_n = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK_N
    at_n, at_e = i_n + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_E)
    in_n, in_e = at_n < N, at_e < E
    OUT = of_head(OUT, o_, i_b, 0)
    lost = is_lost(OUT, o_, at_n, at_e, in_n, in_e)
    if any_of(lost):
        lse = tl.load(LSE + i_b * N + at_n, mask=in_n, other=0.0)
        ZQ, ZK = ZQ + i_b * N * A, ZK + i_b * M * A
        XQ, XK = XQ + i_b * rows_n * (A + A % 2) + i_n, XK + i_b * rows_m * (A + A % 2)
        lost_of = lost_of_weights(WS, A)
        if MASK is not None:
            MASK = of_head(MASK, mask_, i_b, 0)
        if KEEP is not None:
            KEEP = of_head(KEEP, keep_, i_b, 0)
        norm = tl.full([BLOCK_N], 0.0, tl.float32)
        out = tl.full([BLOCK_N, BLOCK_E], 0.0, tl.float32)
        met = tl.full([BLOCK_N, BLOCK_E], 0.0, tl.float32)
        for i_m in range(0, whole(M), BLOCK_M):
            at_m = i_m + tl.arange(0, BLOCK_M)
            s, _ = additive_scores(
                ZQ, ZK, XQ, XK, WS, lost_of, at_n, at_m, in_n, at_m < M, rows_n, rows_m, A,
                False, BLOCK_N, BLOCK_M,
            )  # fmt: skip
            s, visible = biased(s, at_n[:, None], at_m[None, :], None, MASK, mask_, 0, N, M, False)
            out, norm, met = take_values(
                out, norm, met, s, visible, lse, KEEP, keep_, of_head(V, v_, i_b, 0), v_,
                at_n, at_m, at_e, in_e, N, M,
            )  # fmt: skip
        write_lost(OUT, o_, at_n, at_e, lost, met, out, norm, share)
