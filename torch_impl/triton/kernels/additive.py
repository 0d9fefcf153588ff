"""
Additive attention, forward and backward, without a tensor of N by M, let alone by A.

A program owns a block of queries of one batch entry and walks over the blocks of keys; the scores
of a block are summed feature by feature. ZQ [B N A] and ZK [B M A] are the projected queries and
keys in float32, WS [A] the weights of the features; the rest is named as in
:mod:`torch_impl.triton.kernels.attention`, with one head.

The tangent of a pair is 1 - 2 / (1 + exp(2 zq) exp(2 zk)), by exponentials XQ [B A rows_n] and XK
[B A rows_m] that :func:`exponentials` takes beforehand, and two features share one reciprocal: with
x = 1 + exp(2 zq) exp(2 zk),

    w1 t1 + w2 t2 = (w1 + w2) - 2 (w1 x2 + w2 x1) / (x1 x2).

Where a projection is beyond :data:`LARGEST`, or no number, its exponential is NaN and so are the
scores of its pairs, which are then made anew from the projections: neighbours take no notice.
"""

from typing import Any

import triton.language as tl

from .attention import (
    LOG2E,
    add_product,
    biased,
    finite,
    kept,
    of_head,
    product,
    tile,
    weights_grad,
    write,
)
from .launch import (
    Kernel,
    add_to,
    again,
    any_of,
    largest,
    quotient,
    read,
    rounded,
    strides_of,
    total,
    totals,
    whole,
)

COLUMNS = 64
"""
Of the values, as many as the gradients take at a time: in float32 more do not fit into the
registers beside each other.
"""

FEATURES = tl.constexpr(32)
"""Whose exponentials are taken at a time."""

FEATURES_OF_GRADS = tl.constexpr(64)
"""
Whose gradients are summed at a time: two for each lane of a warp, whatever else its threads have.
Half as many where projections are large, for the tangents that are made anew need registers too.
"""

LARGEST = tl.constexpr(10.0)
"""Projections up to here are multiplied as exponentials: four make exp(80), which is finite."""


@Kernel
def exponential(z):
    """exp(2z); NaN beyond :data:`LARGEST`."""
    return tl.where(tl.abs(z) <= LARGEST, tl.exp(2.0 * z), float("nan"))


@Kernel
def exponentials(Z, X, rows, padded_rows, A, BLOCK: tl.constexpr):
    """
    exp(2z) of projections [rows A], transposed, for blocks of rows and pairs of features: 0 beyond
    the last of either.
    """
    i_b, at_row = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    Z, X = Z + i_b * rows * A, X + i_b * padded_rows * (A + A % 2)
    for a in range(0, whole(A), FEATURES):
        at_a = a + tl.arange(0, FEATURES)
        inside = (at_row < rows)[:, None] & (at_a < A)[None, :]
        z = read(Z + at_row.to(tl.int64)[:, None] * A + at_a[None, :], inside)
        x = exponential(z)
        at = X + at_a.to(tl.int64)[None, :] * padded_rows + at_row[:, None]
        in_a = tl.broadcast_to((at_a < A + A % 2)[None, :], inside.shape)
        tl.store(at, tl.where(inside, x, 0.0), mask=in_a)


@Kernel
def feature(Z, at_row, in_row, A, FINITE: tl.constexpr):
    """A feature of some projected rows."""
    z = read(Z + at_row.to(tl.int64) * A, in_row)
    return finite(z) if FINITE else z


@Kernel
def tangent(z):
    """It is 1 from 20 on."""
    return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * tl.where(z > 20.0, 20.0, z)))


@Kernel
def slow_tangent(ZQ, ZK, at_n, at_m, in_n, in_m, A, FINITE: tl.constexpr):
    """The tangent of a feature for a block of pairs, of any projections."""
    q, k = feature(ZQ, at_n, in_n, A, FINITE), feature(ZK, at_m, in_m, A, FINITE)
    return tangent(q[:, None] + k[None, :])


@Kernel
def weight(WS, a, A):
    """The weights of two features, 0 beyond the last."""
    return tl.load(WS + a).to(tl.float32), tl.load(WS + a + 1, mask=a + 1 < A, other=0.0).to(
        tl.float32
    )


@Kernel
def sum_of_two(a, b):
    """a + b, and what the rounding of it loses."""
    c = a + b
    of_b = c - a
    return c, (a - (c - of_b)) + (b - of_b)


@Kernel
def lost_of_weights(WS, A):
    """What the sums of two weights lose by rounding, summed."""
    lost = 0.0
    for a in range(0, whole(A), 2):
        w1, w2 = weight(WS, a, A)
        _, more = sum_of_two(w1, w2)
        lost += more
    return lost


@Kernel
def one_more(XQ, XK, at_n, at_m):
    """1 + exp(2z) of a feature for a block of pairs."""
    return tl.load(XQ + at_n)[:, None] * tl.load(XK + at_m)[None, :] + 1.0


@Kernel
def scores(
    ZQ, ZK, XQ, XK, WS, lost, at_n, at_m, in_n, in_m, rows_n, rows_m, A,
    FINITE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """
    The scores of a block of pairs, in base 2, and whether some were made anew; XQ begins with the
    first of the block's queries.
    """
    row = tl.arange(0, BLOCK_N)
    s = tl.full([BLOCK_N, BLOCK_M], 0.0, tl.float32)
    for a in range(0, whole(A), 2):
        x1, x2 = one_more(XQ, XK, row, at_m), one_more(XQ + rows_n, XK + rows_m, row, at_m)
        w1, w2 = weight(WS, a, A)
        s += quotient((-2.0 * w1) * x2 + (-2.0 * w2) * x1, x1 * x2) + (w1 + w2)
        XQ, XK = XQ + 2 * rows_n, XK + 2 * rows_m
    no_number = (tl.abs(s) < float("inf")) == 0
    anew = any_of(no_number)
    s = s * LOG2E + lost * LOG2E
    if anew:
        if FINITE:  # in the gradients registers are scarce
            at_n, at_m = again(at_n), again(at_m)
        slow = tl.full([BLOCK_N, BLOCK_M], 0.0, tl.float32)
        for a in range(0, whole(A)):
            t = slow_tangent(ZQ + a, ZK + a, at_n, at_m, in_n, in_m, A, FINITE)
            slow += tl.load(WS + a).to(tl.float32) * t
        s = tl.where(no_number, slow * LOG2E, s)
    return s, anew


@Kernel
def projections(Z, at_row, at_a, in_row, A):
    """Finite features of some projected rows, transposed, and their exponentials."""
    z = read(
        Z + at_row.to(tl.int64)[None, :] * A + at_a[:, None],
        in_row[None, :] & (at_a < A)[:, None],
    )
    z = finite(z)
    return z, exponential(z)


@Kernel
def tangents(z1, z2, zk, x1, x2, xk, SLOW: tl.constexpr):
    """
    The tangents of two queries for a block of keys and features, by one reciprocal: halves of what
    they divide by are multiplied. SLOW: some projections are beyond :data:`LARGEST`.
    """
    x1, x2 = (0.5 * x1) * xk + 0.5, (0.5 * x2) * xk + 0.5
    shared = quotient(1.0, x1 * x2)
    t1, t2 = 1.0 - x2 * shared, 1.0 - x1 * shared
    if SLOW:
        bad = shared != shared
        t1 = tl.where(bad, tangent(z1 + zk), t1)
        t2 = tl.where(bad, tangent(z2 + zk), t2)
    return t1, t2


@Kernel
def additive_forward(
    ZQ, ZK, XQ, XK, WS, V, OUT, LSE, MASK, KEEP, v_, o_, mask_, keep_, rows_n, rows_m, N, M, A, E,
    share, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """
    Output and log-sum-exp of a block of queries, by an online softmax over the blocks of keys.
    """
    v_, o_, mask_, keep_ = strides_of(v_), strides_of(o_), strides_of(mask_), strides_of(keep_)
    i_b, i_n = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK_N
    at_n, at_e = i_n + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_E)
    in_n, in_e = at_n < N, at_e < E
    ZQ, ZK = ZQ + i_b * N * A, ZK + i_b * M * A
    XQ, XK = XQ + i_b * rows_n * (A + A % 2) + i_n, XK + i_b * rows_m * (A + A % 2)
    lost = lost_of_weights(WS, A)
    if MASK is not None:
        MASK = of_head(MASK, mask_, i_b, 0)
    if KEEP is not None:
        KEEP = of_head(KEEP, keep_, i_b, 0)
    top = tl.full([BLOCK_N], float("-inf"), tl.float32)
    norm = tl.full([BLOCK_N], 0.0, tl.float32)
    out = tl.full([BLOCK_N, BLOCK_E], 0.0, tl.float32)
    for i_m in range(0, whole(M), BLOCK_M):
        at_m = i_m + tl.arange(0, BLOCK_M)
        in_m = at_m < M
        s, _ = scores(
            ZQ, ZK, XQ, XK, WS, lost, at_n, at_m, in_n, in_m, rows_n, rows_m, A,
            False, BLOCK_N, BLOCK_M,
        )  # fmt: skip
        s, _ = biased(s, at_n[:, None], at_m[None, :], None, MASK, mask_, 0, N, M, False)
        rise = tl.maximum(top, largest(s, 1))
        level = tl.where(rise == float("-inf"), 0.0, rise)
        p = tl.exp2(s - level[:, None])
        fade = tl.exp2(top - level)
        norm = norm * fade + total(p, 1)
        if KEEP is not None:
            p = tl.where(kept(KEEP, keep_, at_n[:, None], at_m[None, :], N, M), p, 0.0)
        v = tile(of_head(V, v_, i_b, 0), at_m, at_e, v_[2], v_[3], in_m, in_e)
        out = add_product(out * fade[:, None], rounded(p, V), v)
        top = rise
    out = tl.where((norm == 0.0)[:, None], 0.0, out * share / norm[:, None])
    write(of_head(OUT, o_, i_b, 0), at_n, at_e, o_[2], o_[3], in_n, in_e, out)
    tl.store(LSE + i_b * N + at_n, top + tl.log2(norm), mask=in_n)


@Kernel
def mask_grad(DM, dm_, ds, at_n, at_m, N, M, OVER_N: tl.constexpr, OVER_M: tl.constexpr):
    """
    Add the gradient of the scores to that of a float mask, summed over the axes along which it was
    broadcast.
    """
    in_n, in_m = at_n < N, at_m < M
    if OVER_N and OVER_M:
        add_to(DM, total(total(ds, 1), 0), None)
    elif OVER_N:
        add_to(DM + at_m.to(tl.int64) * dm_[3], total(ds, 0), in_m)
    elif OVER_M:
        add_to(DM + at_n.to(tl.int64) * dm_[2], total(ds, 1), in_n)
    else:
        at = DM + at_n.to(tl.int64)[:, None] * dm_[2] + at_m.to(tl.int64)[None, :] * dm_[3]
        add_to(at, ds, in_n[:, None] & in_m[None, :])


@Kernel
def features(Z, row, rows, at_a, A):
    """Finite features of one projected row [a 1], and their exponentials."""
    z = finite(read(Z + row.to(tl.int64) * A + at_a, (at_a < A) & (row < rows)))
    return z[:, None], exponential(z)[:, None]


@Kernel
def two_rows(x, i):
    """Rows i and i + 1 of a block."""
    at = i + tl.arange(0, 2)[:, None]
    return tl.split(tl.trans(tl.gather(x, tl.broadcast_to(at, [2, x.shape[1]]), 0)))


@two_rows.instead
def _(x: Any, i: int) -> Any:
    rows = (tl.full([1, x.shape[1]], row, tl.int32) for row in (i, i + 1))
    return tuple(total(tl.gather(x, row, 0), 0) for row in rows)


@Kernel
def halves(x):
    """The left and the right half of a block."""
    return tl.split(tl.trans(tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), (0, 2, 1)))


@halves.instead
def _(x: Any) -> Any:
    rows, half = x.shape[0], x.shape[1] // 2
    columns = (tl.arange(0, half) + first for first in (0, half))
    return tuple(tl.gather(x, tl.broadcast_to(at[None, :], [rows, half]), 1) for at in columns)


@Kernel
def add_features(DZ, dz, at_row, at_a, in_row, in_a, A):
    """
    Add a block of gradients, transposed, to rows [1 rows] and features [a 1], one half after the
    other: the addresses of a whole block are more than there are registers.
    """
    left, right = halves(dz)
    at_left, at_right = halves(at_row)
    in_left, in_right = halves(in_row.to(tl.int32))
    add_to(DZ + at_left.to(tl.int64) * A + at_a, left, (in_left != 0) & in_a)
    add_to(DZ + at_right.to(tl.int64) * A + at_a, right, (in_right != 0) & in_a)


@Kernel
def feature_grads(
    ds, ZQ, ZK, WS, DZQ, DZK, DWS, i_n, at_m, in_m, N, A,
    SLOW: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """
    Add what the gradients of a block's scores give to those of the projections and weights: the
    keys' and weights' for a block of keys and features, query by query, are sums of each thread.
    """
    BLOCK_A: tl.constexpr = FEATURES_OF_GRADS // 2 if SLOW else FEATURES_OF_GRADS
    for i_a in range(0, whole(A), BLOCK_A):
        at_a = again(i_a + tl.arange(0, BLOCK_A))
        in_a = at_a < A
        zk, xk = projections(ZK, again(at_m), at_a, in_m, A)
        w = read(WS + at_a, in_a).to(tl.float32)
        dk = tl.full(xk.shape, 0.0, tl.float32)
        dw = tl.full(xk.shape, 0.0, tl.float32)
        for i in range(0, whole(tl.minimum(BLOCK_N, N - i_n)), 2):
            d1, d2 = two_rows(ds, i)
            d1, d2 = d1[None, :], d2[None, :]
            row = i_n + i
            z1, x1 = features(ZQ, row, N, at_a, A)
            z2, x2 = features(ZQ, row + 1, N, at_a, A)
            t1, t2 = tangents(z1, z2, zk, x1, x2, xk, SLOW)
            dw = tl.fma(d2, t2, tl.fma(d1, t1, dw))
            t1, t2 = 1.0 - t1 * t1, 1.0 - t2 * t2
            dk = tl.fma(d2, t2, tl.fma(d1, t1, dk))
            of_q1, of_q2 = totals(d1 * t1, d2 * t2, 1)
            at_q = DZQ + row.to(tl.int64) * A + at_a
            add_to(at_q, of_q1 * w, in_a)
            add_to(at_q + A, of_q2 * w, in_a & (row + 1 < N))
        dk *= w[:, None]
        add_features(DZK, dk, again(at_m)[None, :], at_a[:, None], in_m[None, :], in_a[:, None], A)
        add_to(DWS + at_a, total(dw, 1), in_a)


@Kernel
def additive_backward(
    DO, OUT, LSE, ZQ, ZK, XQ, XK, WS, V, MASK, KEEP, DZQ, DZK, DWS, DV, DM,
    do_, o_, v_, mask_, keep_, dm_, rows_n, rows_m, before_b, before_n, N, M, A, E, share,
    OVER_N: tl.constexpr, OVER_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_E: tl.constexpr,
):  # fmt: skip
    """
    All gradients, added in float32: in one pass, since the tangents cost more than the additions.
    DWS [B A] is not summed over the batch.

    So many batch entries and blocks of queries were launched before. The columns of the values are
    taken BLOCK_E at a time.
    """
    do_, o_, v_ = strides_of(do_), strides_of(o_), strides_of(v_)
    mask_, keep_, dm_ = strides_of(mask_), strides_of(keep_), strides_of(dm_)
    i_b, i_n = (tl.program_id(0) + before_b).to(tl.int64), (tl.program_id(1) + before_n) * BLOCK_N
    at_n = i_n + tl.arange(0, BLOCK_N)
    in_n = at_n < N
    lse = tl.load(LSE + i_b * N + at_n, mask=in_n, other=float("-inf"))
    sees = lse > float("-inf")
    DO, OUT, V = of_head(DO, do_, i_b, 0), of_head(OUT, o_, i_b, 0), of_head(V, v_, i_b, 0)
    delta = tl.full([BLOCK_N], 0.0, tl.float32)
    for i_e in range(0, whole(E), BLOCK_E):
        at_e = i_e + tl.arange(0, BLOCK_E)
        do = tile(DO, at_n, at_e, do_[2], do_[3], sees, at_e < E)
        o = tile(OUT, at_n, at_e, o_[2], o_[3], sees, at_e < E)
        delta += total(do.to(tl.float32) * o.to(tl.float32), 1)
    ZQ, ZK = ZQ + i_b * N * A, ZK + i_b * M * A
    XQ, XK = XQ + i_b * rows_n * (A + A % 2) + i_n, XK + i_b * rows_m * (A + A % 2)
    lost = lost_of_weights(WS, A)
    DZQ, DZK, DWS = DZQ + i_b * N * A, DZK + i_b * M * A, DWS + i_b * A
    if MASK is not None:
        MASK = of_head(MASK, mask_, i_b, 0)
    if KEEP is not None:
        KEEP = of_head(KEEP, keep_, i_b, 0)
    if DM is not None:
        DM = of_head(DM, dm_, i_b, 0)
    for i_m in range(0, whole(M), BLOCK_M):
        at_m = i_m + tl.arange(0, BLOCK_M)
        in_m = at_m < M
        s, slow = scores(
            ZQ, ZK, again(XQ), again(XK), WS, lost, at_n, at_m, in_n, in_m, rows_n, rows_m, A,
            True, BLOCK_N, BLOCK_M,
        )  # fmt: skip
        again_n, again_m = again(at_n), again(at_m)
        lse = tl.load(LSE + i_b * N + again_n, mask=again_n < N, other=float("-inf"))
        sees = lse > float("-inf")
        s, visible = biased(s, at_n[:, None], at_m[None, :], None, MASK, mask_, 0, N, M, False)
        dp = tl.full([BLOCK_N, BLOCK_M], 0.0, tl.float32)
        for i_e in range(0, whole(E), BLOCK_E):
            at_e = i_e + tl.arange(0, BLOCK_E)
            do = tile(DO, again_n, at_e, do_[2], do_[3], sees, at_e < E)
            v = tile(V, again_m, at_e, v_[2], v_[3], in_m, at_e < E)
            dp += product(do, tl.trans(v))
        p, ds = weights_grad(
            s, visible, lse, delta, dp, KEEP, keep_, at_n[:, None], at_m[None, :], N, M, share
        )
        if DM is not None:
            mask_grad(DM, dm_, ds, at_n, at_m, N, M, OVER_N, OVER_M)
        for i_e in range(0, whole(E), BLOCK_E):
            at_e = i_e + tl.arange(0, BLOCK_E)
            do = tile(DO, again_n, at_e, do_[2], do_[3], sees, at_e < E)
            at_v = DV + (i_b * M + again_m)[:, None] * E + at_e[None, :]
            add_to(at_v, product(tl.trans(rounded(p, V)), do), in_m[:, None] & (at_e < E)[None, :])
        if slow:
            feature_grads(
                ds, ZQ, ZK, WS, DZQ, DZK, DWS, i_n, at_m, in_m, N, A, SLOW=True, BLOCK_N=BLOCK_N
            )
        else:
            feature_grads(
                ds, ZQ, ZK, WS, DZQ, DZK, DWS, i_n, at_m, in_m, N, A, SLOW=False, BLOCK_N=BLOCK_N
            )
