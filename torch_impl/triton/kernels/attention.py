"""
Attention by scaled inner products, forward and backward, without a matrix of N by M: masks, causal
rows, ALiBi and relative positions.

A program owns a block of queries (or, for the gradients of keys and values, of keys) of one head
and walks over the blocks of the other side. Relative positions, sinusoidal or learned, come through
a rolling band: the pair (i, j) reads row ``first`` - i + j of a table R with a bias S, and
consecutive key blocks of one query block read bands that are shifted by exactly one block, so that
one more product a block is enough.

Letters as in the design. Q K V OUT are tensors, LSE the log of the sum of exponentials [B H N],
MASK and KEEP what is added or visible and kept, with strides of 0 where they broadcast, SLOPES [H],
U and W [H D] the biases of the query for content and position. What is None is left out of the
compiled kernel. ``q_`` are the strides of Q.
"""

import triton.language as tl

from .bands import (
    nothing_before,
    pair_scores,
    pair_scores_at_once,
    rows_of_pairs,
    turned_to_pairs,
)
from .launch import (
    Kernel,
    add_to,
    head_and_block,
    head_and_last_block,
    largest,
    read,
    rounded,
    strides_of,
    total,
    whole,
)

LOG2E = tl.constexpr(1.4426950408889634)
"""
Scores are kept in base 2, the base of the GPU's exponential: times log2(e), which is folded into
their scale.
"""


@Kernel
def of_head(X, x_, i_b, i_h):
    """The address where a head of a batch entry begins."""
    return X + i_b * x_[0] + i_h * x_[1]


@Kernel
def tile(X, at_row, at_column, row, column, in_row, in_column):
    """
    A block of a matrix whose rows and columns lie ``row`` and ``column`` elements apart; 0 outside.
    ``in_row`` is None where all rows are there.
    """
    at = X + at_row.to(tl.int64)[:, None] * row + at_column.to(tl.int64)[None, :] * column
    if in_row is None:
        return read(at, tl.broadcast_to(in_column[None, :], at.shape))
    else:
        return read(at, in_row[:, None] & in_column[None, :])


@Kernel
def write(X, at_row, at_column, row, column, in_row, in_column, x):
    """Store a block of a matrix, as :func:`tile` reads one."""
    at = X + at_row.to(tl.int64)[:, None] * row + at_column.to(tl.int64)[None, :] * column
    tl.store(at, rounded(x, X), mask=in_row[:, None] & in_column[None, :])


@Kernel
def product(a, b):
    """a b, accumulated in float32; float32 factors are not cut to TF32."""
    return tl.dot(a, b, input_precision="ieee")


@Kernel
def add_product(c, a, b):
    """c + a b, accumulated upon c."""
    return tl.dot(a, b, c, input_precision="ieee")


@Kernel
def finite(x):
    """
    x without NaN and infinity.

    For factors of a gradient: a visible pair has carried them to the weights of its row already,
    and a hidden one, of weight 0, must not.
    """
    return tl.where(tl.abs(x) < float("inf"), x, 0.0)


@Kernel
def joined(q, U, at_d, in_d):
    """The queries plus a bias of their head, in the dtype of both; without a bias the queries."""
    if U is None:
        return q
    else:
        return rounded(q.to(tl.float32) + read(U + at_d, in_d).to(tl.float32)[None, :], U)


@Kernel
def band(q, R, S, r_, first, rows, at_d, in_d, BLOCK: tl.constexpr, FULL: tl.constexpr = False):
    """
    Relative scores q . R + S of BLOCK rows from ``first`` on. FULL: the table has all of these.
    """
    at = tl.arange(0, BLOCK)
    at_r = first + at
    in_r = (at_r >= 0) & (at_r < rows)
    g = product(q, tl.trans(tile(R, at_r, at_d, r_[2], r_[3], None if FULL else in_r, in_d)))
    if S is not None:
        in_s = at >= 0 if FULL else in_r
        g += read(S + at_r, in_s).to(tl.float32)[None, :]
    return g


@Kernel
def biased(s, at_n, at_m, SLOPES, MASK, mask_, i_h, N, M, CAUSAL: tl.constexpr):
    """
    The scores of queries [n 1] and keys [1 m] or [n m] in base 2 with what is added, -inf where a
    pair is hidden; and which pairs are visible.
    """
    if CAUSAL:
        reach = tl.minimum(M, at_n + (M - N) + 1)
        visible = at_m < tl.where(at_n < N, reach, 0)
    else:
        visible = (at_n < N) & (at_m < M)
    if SLOPES is not None:
        s += tl.load(SLOPES + i_h) * LOG2E * (at_m - (at_n + (M - N)))
    if MASK is not None:
        at = MASK + at_n.to(tl.int64) * mask_[2] + at_m.to(tl.int64) * mask_[3]
        if MASK.dtype.element_ty == tl.int1:
            visible = visible & tl.load(at, mask=visible, other=0)
        else:
            added = read(at, visible).to(tl.float32)
            visible = visible & (added != float("-inf"))
            s += added * LOG2E
    return tl.where(visible, s, float("-inf")), visible


@Kernel
def kept(KEEP, keep_, at_n, at_m, N, M):
    return tl.load(
        KEEP + at_n.to(tl.int64) * keep_[2] + at_m.to(tl.int64) * keep_[3],
        mask=(at_n < N) & (at_m < M),
        other=0,
    )


@Kernel
def forward_step(
    qu, qw, K, V, MASK, KEEP, SLOPES, R, S, k_, v_, mask_, keep_, r_,
    at_n, at_m, at_d, at_e, in_d, in_e, i_h, N, M, rows, low, scale, before, top, norm, out,
    CAUSAL: tl.constexpr, HIDING: tl.constexpr, BLOCK_N: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """
    One block of keys: the band that the next one begins with, and the maximum, sum and output so
    far. FULL: every pair is there and visible, and the table has all rows; nothing is looked up.
    """
    in_m = None if FULL else at_m < M
    k = tile(K, at_m, at_d, k_[2], k_[3], in_m, in_d)
    if R is not None:
        g = band(qw, R, S, r_, low, rows, at_d, in_d, BLOCK_N, FULL)
        after = turned_to_pairs(g, BLOCK_N)
        s = add_product(pair_scores(before, after, BLOCK_N), qu, tl.trans(k))
        before = after
    else:
        s = product(qu, tl.trans(k))
    if FULL and SLOPES is None:
        rise = tl.maximum(top, largest(s, 1) * scale)
    elif FULL:
        s = s * scale + tl.load(SLOPES + i_h) * LOG2E * (at_m[None, :] - (at_n[:, None] + (M - N)))
        rise = tl.maximum(top, largest(s, 1))
    else:
        s, visible = biased(
            s * scale, at_n[:, None], at_m[None, :], SLOPES, MASK, mask_, i_h, N, M, CAUSAL
        )
        rise = tl.maximum(top, largest(s, 1))
    level = tl.where(rise == float("-inf"), 0.0, rise)
    if FULL and SLOPES is None:
        s = s * scale  # one instruction with the subtraction
    p = tl.exp2(s - level[:, None])
    fade = tl.exp2(top - level)
    norm = norm * fade + total(p, 1)
    if KEEP is not None:
        p = tl.where(kept(KEEP, keep_, at_n[:, None], at_m[None, :], N, M), p, 0.0)
    v = tile(V, at_m, at_e, v_[2], v_[3], in_m, in_e)
    if HIDING and not FULL:
        v = tl.where((largest(visible.to(tl.int32), 0) > 0)[:, None], v, 0.0)
    return before, rise, norm, add_product(out * fade[:, None], rounded(p, V), v)


@Kernel
def full_blocks(
    i_n, low, N, M, rows, MASK, R,
    CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """
    Up to which key a block of queries meets whole blocks that it may see without a look: all keys
    are there and before, and the table has all rows of their bands.
    """
    stop = M
    if CAUSAL:
        stop = tl.minimum(stop, i_n + (M - N) + 1)
    if R is not None:
        stop = tl.minimum(stop, tl.where(low + BLOCK_M < 0, 0, rows - low - BLOCK_N))
    if MASK is not None or (R is not None and BLOCK_D > 64):
        stop = stop * 0  # beyond a width of 64 bands leave no registers for a second loop
    return tl.maximum(stop, 0) // BLOCK_M * BLOCK_M


@Kernel
def forward(
    Q, K, V, OUT, LSE, MASK, KEEP, SLOPES, U, W, R, S,
    q_, k_, v_, o_, mask_, keep_, r_,
    H, N, M, D, E, rows, first, scale, share,
    CAUSAL: tl.constexpr, HIDING: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """
    Output and log-sum-exp, in base 2, of a block of queries, by an online softmax over the blocks
    of keys: first those that are seen whole, then those at the edge.
    """
    q_, k_, v_, o_ = strides_of(q_), strides_of(k_), strides_of(v_), strides_of(o_)
    mask_, keep_, r_ = strides_of(mask_), strides_of(keep_), strides_of(r_)
    i_head, block = head_and_last_block()
    i_b, i_h, i_n = (i_head // H).to(tl.int64), (i_head % H).to(tl.int64), block * BLOCK_N
    at_n, at_d, at_e = i_n + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    in_n, in_d, in_e = at_n < N, at_d < D, at_e < E
    q = tile(of_head(Q, q_, i_b, i_h), at_n, at_d, q_[2], q_[3], in_n, in_d)
    qu, qw = joined(q, U, i_h * D + at_d, in_d), joined(q, W, i_h * D + at_d, in_d)
    K, V = of_head(K, k_, i_b, i_h), of_head(V, v_, i_b, i_h)
    if MASK is not None:
        MASK = of_head(MASK, mask_, i_b, i_h)
    if KEEP is not None:
        KEEP = of_head(KEEP, keep_, i_b, i_h)
    if R is not None:
        R = of_head(R, r_, 0, i_h)
    if S is not None:
        S += i_h * rows
    low = first - i_n - (BLOCK_N - 1)
    top = tl.full([BLOCK_N], float("-inf"), tl.float32)
    norm = tl.full([BLOCK_N], 0.0, tl.float32)
    out = tl.full([BLOCK_N, BLOCK_E], 0.0, tl.float32)
    before = norm
    if R is not None:
        g = band(qw, R, S, r_, low, rows, at_d, in_d, BLOCK_N)
        before = turned_to_pairs(g, BLOCK_N)
    scale *= LOG2E
    stop = M
    if CAUSAL:
        stop = tl.minimum(M, i_n + BLOCK_N + (M - N))
    full = full_blocks(i_n, low, N, M, rows, MASK, R, CAUSAL, BLOCK_N, BLOCK_M, BLOCK_D)
    if MASK is None and (R is None or BLOCK_D <= 64):
        for i_m in range(0, whole(full), BLOCK_M):
            at_m = i_m + tl.arange(0, BLOCK_M)
            before, top, norm, out = forward_step(
                qu, qw, K, V, MASK, KEEP, SLOPES, R, S, k_, v_, mask_, keep_, r_,
                at_n, at_m, at_d, at_e, in_d, in_e, i_h, N, M, rows, low + i_m + BLOCK_M, scale,
                before, top, norm, out, CAUSAL, HIDING, BLOCK_N, True,
            )  # fmt: skip
    for i_m in range(whole(full), whole(stop), BLOCK_M):
        at_m = i_m + tl.arange(0, BLOCK_M)
        before, top, norm, out = forward_step(
            qu, qw, K, V, MASK, KEEP, SLOPES, R, S, k_, v_, mask_, keep_, r_,
            at_n, at_m, at_d, at_e, in_d, in_e, i_h, N, M, rows, low + i_m + BLOCK_M, scale,
            before, top, norm, out, CAUSAL, HIDING, BLOCK_N, False,
        )  # fmt: skip
    out = tl.where((norm == 0.0)[:, None], 0.0, out * share / norm[:, None])
    write(of_head(OUT, o_, i_b, i_h), at_n, at_e, o_[2], o_[3], in_n, in_e, out)
    tl.store(LSE + (i_b * H + i_h) * N + at_n, top + tl.log2(norm), mask=in_n)


@Kernel
def against(a, X, at_row, at_column, row, column, rows, in_column):
    """a x^T for a block of the rows of X, which may begin before the first."""
    return product(
        a,
        tl.trans(
            tile(X, at_row, at_column, row, column, (at_row >= 0) & (at_row < rows), in_column)
        ),
    )


@Kernel
def band_grad(
    ds, before, qw, R, DR, DS, r_, first, rows, D, i_h, at_d, in_d, BLOCK: tl.constexpr
):  # fmt: skip
    """
    The queries' part of the gradients of a block of pairs and the one before it, by the block of
    rows that both have read, and what the next is given; the rows' is added to DR and DS, if they
    are given.
    """
    at = tl.arange(0, BLOCK)
    at_r = first + at
    in_r = (at_r >= 0) & (at_r < rows)
    row = i_h * rows + at_r
    db, after = rows_of_pairs(ds, before, BLOCK)
    if DS is not None:
        add_to(DS + row, total(db, 0), in_r)
    db = rounded(db, R)
    if DR is not None:
        add_to(
            DR + row[:, None] * D + at_d[None, :],
            product(tl.trans(db), qw),
            in_r[:, None] & in_d[None, :],
        )
    return product(db, finite(tile(R, at_r, at_d, r_[2], r_[3], in_r, in_d))), after


@Kernel
def weights_grad(s, visible, lse, delta, dp, KEEP, keep_, at_n, at_m, N, M, share):
    """
    The weights after dropout and the gradient of the scores, from the scores, do v^T and what the
    forward pass has left.
    """
    p = tl.where(visible, tl.exp2(s - lse[:, None]), 0.0)
    dp *= share
    dropped = p * share
    if KEEP is not None:
        keep = kept(KEEP, keep_, at_n, at_m, N, M)
        dp, dropped = tl.where(keep, dp, 0.0), tl.where(keep, dropped, 0.0)
    return dropped, tl.where(visible, p * (dp - delta[:, None]), 0.0)


@Kernel
def backward_query(
    DO, OUT, LSE, DELTA, Q, QW, K, V, MASK, KEEP, SLOPES, R, S, DQ, DM, DMN, DU, DW, DR, DS,
    do_, o_, q_, qw_, k_, v_, mask_, keep_, r_, dq_, dm_,
    before, H, N, M, D, E, rows, first, scale, share,
    CAUSAL: tl.constexpr, HIDING: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """
    The gradients of a block of queries, and their parts of those of the mask and of all that
    positions add. Q are the queries with the bias for content, QW with the one for position.

    ``before`` heads of all batch entries were launched before. DM [B H N M] where the mask is not
    summed over queries or keys is added to, DMN [B H N] has its sums over the keys, DU and DW
    [B H N/BLOCK_N D] those over a block; DR and DS are added to.
    """
    do_, o_, q_, qw_ = strides_of(do_), strides_of(o_), strides_of(q_), strides_of(qw_)
    k_, v_, mask_, keep_ = strides_of(k_), strides_of(v_), strides_of(mask_), strides_of(keep_)
    r_, dq_, dm_ = strides_of(r_), strides_of(dq_), strides_of(dm_)
    i_head, block = head_and_last_block()
    i_head += before
    i_b, i_h, i_n = (i_head // H).to(tl.int64), (i_head % H).to(tl.int64), block * BLOCK_N
    at_n, at_d, at_e = i_n + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    in_n, in_d, in_e = at_n < N, at_d < D, at_e < E
    lse = tl.load(LSE + (i_b * H + i_h) * N + at_n, mask=in_n, other=float("-inf"))
    sees = lse > float("-inf")
    q = tile(of_head(Q, q_, i_b, i_h), at_n, at_d, q_[2], q_[3], sees, in_d)
    do = tile(of_head(DO, do_, i_b, i_h), at_n, at_e, do_[2], do_[3], sees, in_e)
    o = tile(of_head(OUT, o_, i_b, i_h), at_n, at_e, o_[2], o_[3], sees, in_e)
    delta = total(do.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(DELTA + (i_b * H + i_h) * N + at_n, delta, mask=in_n)
    if MASK is not None:
        MASK = of_head(MASK, mask_, i_b, i_h)
    if KEEP is not None:
        KEEP = of_head(KEEP, keep_, i_b, i_h)
    if R is not None:
        R = of_head(R, r_, 0, i_h)
        qw = tile(of_head(QW, qw_, i_b, i_h), at_n, at_d, qw_[2], qw_[3], sees, in_d)
    if S is not None:
        S += i_h * rows
    if DM is not None:
        DM = of_head(DM, dm_, i_b, i_h)
    low = first - i_n - (BLOCK_N - 1)
    if R is not None:
        none = tl.full([BLOCK_N, BLOCK_M], 0.0, tl.float32)
        if DS is None:
            none = rounded(none, R)
        ds_before = nothing_before(none, BLOCK_N)
    if DMN is not None:
        dm_n = tl.full([BLOCK_N], 0.0, tl.float32)
    dq_content = tl.full([BLOCK_N, BLOCK_D], 0.0, tl.float32)
    dq_distance = tl.full([BLOCK_N, BLOCK_D], 0.0, tl.float32)
    stop = M
    if CAUSAL:
        stop = tl.minimum(M, i_n + BLOCK_N + (M - N))
    for i_m in range(0, whole(stop), BLOCK_M):
        at_m = i_m + tl.arange(0, BLOCK_M)
        in_m = at_m < M
        k = tile(of_head(K, k_, i_b, i_h), at_m, at_d, k_[2], k_[3], in_m, in_d)
        v = tile(of_head(V, v_, i_b, i_h), at_m, at_e, v_[2], v_[3], in_m, in_e)
        if R is not None:
            band_before = band(qw, R, S, r_, low + i_m, rows, at_d, in_d, BLOCK_N)
            after = band(qw, R, S, r_, low + i_m + BLOCK_M, rows, at_d, in_d, BLOCK_N)
            s = add_product(pair_scores_at_once(band_before, after, BLOCK_N), q, tl.trans(k))
        else:
            s = product(q, tl.trans(k))
        s, visible = biased(
            s * (scale * LOG2E),
            at_n[:, None],
            at_m[None, :],
            SLOPES,
            MASK,
            mask_,
            i_h,
            N,
            M,
            CAUSAL,
        )
        _, ds = weights_grad(
            s,
            visible,
            lse,
            delta,
            product(do, tl.trans(v)),
            KEEP,
            keep_,
            at_n[:, None],
            at_m[None, :],
            N,
            M,
            share,
        )
        if DM is not None:
            add_to(
                DM + at_n.to(tl.int64)[:, None] * dm_[2] + at_m.to(tl.int64)[None, :] * dm_[3],
                ds,
                in_n[:, None] & in_m[None, :],
            )
        if DMN is not None:
            dm_n += total(ds, 1)
        ds *= scale
        if HIDING:
            k = finite(k)
        dq_content += product(rounded(ds, K), k)
        if R is not None:
            if DS is None:
                ds = rounded(ds, R)
            part, ds_before = band_grad(
                ds, ds_before, qw, R, DR, DS, r_, low + i_m, rows, D, i_h, at_d, in_d, BLOCK_N
            )
            dq_distance += part
    if R is not None:
        # the last block of keys has pairs that read one band further
        flush = low + (tl.maximum(stop, 0) + BLOCK_M - 1) // BLOCK_M * BLOCK_M
        part, _ = band_grad(
            none, ds_before, qw, R, DR, DS, r_, flush, rows, D, i_h, at_d, in_d, BLOCK_N
        )
        dq_distance += part
    part = ((i_b * H + i_h) * tl.num_programs(1) + block) * D + at_d
    if DU is not None:
        tl.store(DU + part, total(dq_content, 0), mask=in_d)
    if DW is not None:
        tl.store(DW + part, total(dq_distance, 0), mask=in_d)
    if DMN is not None:
        tl.store(DMN + (i_b * H + i_h) * N + at_n, dm_n, mask=in_n)
    write(
        of_head(DQ, dq_, i_b, i_h), at_n, at_d, dq_[2], dq_[3], in_n, in_d, dq_content + dq_distance
    )


@Kernel
def backward_key(
    DO, LSE, DELTA, Q, QW, K, V, MASK, KEEP, SLOPES, R, S, DK, DV, DMM,
    do_, q_, qw_, k_, v_, mask_, keep_, r_, dk_, dv_,
    H, N, M, D, E, rows, first, scale, share,
    CAUSAL: tl.constexpr, HIDING: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """
    The gradients of a block of keys and values, over the queries that may see it; DMM [B H M] are
    the mask's sums over these.
    """
    do_, q_, qw_, k_ = strides_of(do_), strides_of(q_), strides_of(qw_), strides_of(k_)
    v_, mask_, keep_ = strides_of(v_), strides_of(mask_), strides_of(keep_)
    r_, dk_, dv_ = strides_of(r_), strides_of(dk_), strides_of(dv_)
    i_head, block = head_and_block()
    i_b, i_h, i_m = (i_head // H).to(tl.int64), (i_head % H).to(tl.int64), block * BLOCK_M
    at_m, at_d, at_e = i_m + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    in_m, in_d, in_e = at_m < M, at_d < D, at_e < E
    k = tile(of_head(K, k_, i_b, i_h), at_m, at_d, k_[2], k_[3], in_m, in_d)
    v = tile(of_head(V, v_, i_b, i_h), at_m, at_e, v_[2], v_[3], in_m, in_e)
    if MASK is not None:
        MASK = of_head(MASK, mask_, i_b, i_h)
    if KEEP is not None:
        KEEP = of_head(KEEP, keep_, i_b, i_h)
    if R is not None:
        R = of_head(R, r_, 0, i_h)
    if S is not None:
        S += i_h * rows
    dk = tl.full([BLOCK_M, BLOCK_D], 0.0, tl.float32)
    dv = tl.full([BLOCK_M, BLOCK_E], 0.0, tl.float32)
    if DMM is not None:
        dm_m = tl.full([BLOCK_M], 0.0, tl.float32)
    start = 0
    if CAUSAL:
        start = tl.maximum(0, i_m - (M - N)) // BLOCK_N * BLOCK_N
    for i_n in range(whole(start), whole(N), BLOCK_N):
        at_n = i_n + tl.arange(0, BLOCK_N)
        in_n = at_n < N
        lse = tl.load(LSE + (i_b * H + i_h) * N + at_n, mask=in_n, other=float("-inf"))
        delta = tl.load(DELTA + (i_b * H + i_h) * N + at_n, mask=in_n, other=0.0)
        sees = lse > float("-inf")
        q = tile(of_head(Q, q_, i_b, i_h), at_n, at_d, q_[2], q_[3], sees, in_d)
        do = tile(of_head(DO, do_, i_b, i_h), at_n, at_e, do_[2], do_[3], sees, in_e)
        if R is not None:
            qw = tile(of_head(QW, qw_, i_b, i_h), at_n, at_d, qw_[2], qw_[3], sees, in_d)
            low = first - i_n - (BLOCK_N - 1) + i_m
            before = band(qw, R, S, r_, low, rows, at_d, in_d, BLOCK_N)
            after = band(qw, R, S, r_, low + BLOCK_N, rows, at_d, in_d, BLOCK_N)
            s = add_product(pair_scores_at_once(before, after, BLOCK_N), q, tl.trans(k))
        else:
            s = product(q, tl.trans(k))
        s, visible = biased(
            s * (scale * LOG2E),
            at_n[:, None],
            at_m[None, :],
            SLOPES,
            MASK,
            mask_,
            i_h,
            N,
            M,
            CAUSAL,
        )
        p, ds = weights_grad(
            s,
            visible,
            lse,
            delta,
            product(do, tl.trans(v)),
            KEEP,
            keep_,
            at_n[:, None],
            at_m[None, :],
            N,
            M,
            share,
        )
        if DMM is not None:
            dm_m += total(ds, 0)
        dv += product(tl.trans(rounded(p, V)), do)
        dk += product(tl.trans(rounded(ds * scale, K)), q)
    write(of_head(DK, dk_, i_b, i_h), at_m, at_d, dk_[2], dk_[3], in_m, in_d, dk)
    write(of_head(DV, dv_, i_b, i_h), at_m, at_e, dv_[2], dv_[3], in_m, in_e, dv)
    if DMM is not None:
        tl.store(DMM + (i_b * H + i_h) * M + at_m, dm_m, mask=in_m)


@Kernel
def backward_table(
    DO, LSE, DELTA, Q, QW, K, V, MASK, KEEP, R, S, DR, DS,
    do_, q_, qw_, k_, v_, mask_, keep_, r_,
    B, H, N, M, D, E, rows, first, scale, share,
    CAUSAL: tl.constexpr, HIDING: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """
    The gradients of a block of position rows of one head, over all batch entries and blocks of
    queries, in this order and no other.

    A block of queries reads a block of rows by the pairs of a diagonal stripe: of the first of two
    blocks of keys those on the diagonal and above, of the second those below. They are put together
    as one block, key by key modulo the block.
    """
    do_, q_, qw_, k_ = strides_of(do_), strides_of(q_), strides_of(qw_), strides_of(k_)
    v_, mask_, keep_, r_ = strides_of(v_), strides_of(mask_), strides_of(keep_), strides_of(r_)
    i_h, i_r = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK_N
    at, at_d, at_e = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    at_r, in_d, in_e = i_r + at, at_d < D, at_e < E
    in_r = at_r < rows
    r = tile(of_head(R, r_, 0, i_h), at_r, at_d, r_[2], r_[3], in_r, in_d)
    if S is not None:
        bias = read(S + i_h * rows + at_r, in_r).to(tl.float32)[None, :]
    if MASK is not None:
        MASK = of_head(MASK, mask_, 0, i_h)
    if KEEP is not None:
        KEEP = of_head(KEEP, keep_, 0, i_h)
    upper = at[None, :] >= at[:, None]
    dr = tl.full([BLOCK_N, BLOCK_D], 0.0, tl.float32)
    ds_sum = tl.full([BLOCK_N], 0.0, tl.float32)
    # the blocks of queries of which some pair reads some of the rows
    start = tl.maximum(0, first - i_r - 2 * BLOCK_N + 2) // BLOCK_N * BLOCK_N
    stop = tl.minimum(N, M + first - i_r)
    if CAUSAL:
        stop = tl.where(i_r - first > M - N, 0, stop)
    i_b = i_h * 0
    for _ in range(0, whole(B)):
        for i_n in range(whole(start), whole(stop), BLOCK_N):
            at_n = i_n + at
            in_n = at_n < N
            lse = tl.load(LSE + (i_b * H + i_h) * N + at_n, mask=in_n, other=float("-inf"))
            delta = tl.load(DELTA + (i_b * H + i_h) * N + at_n, mask=in_n, other=0.0)
            sees = lse > float("-inf")
            q = tile(of_head(Q, q_, i_b, i_h), at_n, at_d, q_[2], q_[3], sees, in_d)
            do = tile(of_head(DO, do_, i_b, i_h), at_n, at_e, do_[2], do_[3], sees, in_e)
            qw = tile(of_head(QW, qw_, i_b, i_h), at_n, at_d, qw_[2], qw_[3], sees, in_d)
            i_m = i_r - first + i_n
            s = tl.where(
                upper,
                against(q, of_head(K, k_, i_b, i_h), i_m + at, at_d, k_[2], k_[3], M, in_d),
                against(
                    q, of_head(K, k_, i_b, i_h), i_m + at + BLOCK_N, at_d, k_[2], k_[3], M, in_d
                ),
            )
            g = product(qw, tl.trans(r))
            if S is not None:
                g += bias
            s += tl.gather(g, (at[None, :] - at[:, None] + BLOCK_N) % BLOCK_N, 1)
            at_m = i_m + at[None, :] + tl.where(upper, 0, BLOCK_N)
            at_m = tl.where(at_m < 0, M, at_m)  # hidden, as what comes after the last
            s, visible = biased(
                s * (scale * LOG2E), at_n[:, None], at_m, None, MASK, mask_, i_h, N, M, CAUSAL
            )
            dp = tl.where(
                upper,
                against(do, of_head(V, v_, i_b, i_h), i_m + at, at_e, v_[2], v_[3], M, in_e),
                against(
                    do, of_head(V, v_, i_b, i_h), i_m + at + BLOCK_N, at_e, v_[2], v_[3], M, in_e
                ),
            )
            _p, ds = weights_grad(
                s, visible, lse, delta, dp, KEEP, keep_, at_n[:, None], at_m, N, M, share
            )
            db = tl.gather(ds * scale, (at[None, :] + at[:, None]) % BLOCK_N, 1)
            ds_sum += total(db, 0)
            dr += product(tl.trans(rounded(db, R)), qw)
        i_b += 1
        if MASK is not None:
            MASK += mask_[0]
        if KEEP is not None:
            KEEP += keep_[0]
    tl.store(
        DR + (i_h * rows + at_r)[:, None] * D + at_d[None, :],
        dr,
        mask=in_r[:, None] & in_d[None, :],
    )
    if DS is not None:
        tl.store(DS + i_h * rows + at_r, ds_sum, mask=in_r)
