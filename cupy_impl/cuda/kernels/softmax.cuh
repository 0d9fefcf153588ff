// What every attention does with a score: bias and mask, online softmax, and the gradient of a score.
//
// MASKED  whether there may be a mask or dropout; without, their code is left out
#pragma once

#include "tiles.cuh"

// The pairs of one head, and what is added to their scores or hides them.
struct Pairs {
    Matrix<byte> visible, keep;
    Matrix<Element> added;
    bool masked, biased, dropping, causal;
    int N, M;
    float scale, slope, share;

    // The keys that a query may see without a mask: up to this one.
    METHOD int reach(int i) const { return i < N ? (causal ? i + 1 + (M - N) : M) : 0; }

    // The score with all that is added, minus infinity where the pair is hidden; whether it is visible.
    METHOD bool operator()(float& s, int i, int j) const
    {
        bool seen = j < reach(i);
        if (RELATIVE)  // without slopes
            s *= scale;
        else
            s = s * scale + slope * (float)(j - i - (M - N));
        if (MASKED && seen && masked) seen = visible.read(i, j);
        if (MASKED && seen && biased) {
            const float x = widen(added.read(i, j));
            seen = x != -infinity();
            s += x;
        }
        if (!seen) s = -infinity();
        return seen;
    }

    METHOD bool kept(int i, int j) const { return !MASKED || !dropping || (i < N && j < M && keep.read(i, j)); }
};

DEVICE Pairs pairs_of(const Tensor& mask, bool biased, const Tensor& keep, int b, int h, int N, int M, float share)
{
    Pairs pairs{};
    pairs.masked = mask.data && !biased, pairs.biased = mask.data && biased, pairs.dropping = keep.data;
    if (pairs.masked) pairs.visible = matrix<byte>(mask, b, h);
    if (pairs.biased) pairs.added = matrix<Element>(mask, b, h);
    if (pairs.dropping) pairs.keep = matrix<byte>(keep, b, h);
    pairs.N = N, pairs.M = M, pairs.scale = 1, pairs.share = share;
    return pairs;
}

DEVICE void write_rows(const Matrix<Element>& to, float (&c)[WIDTH / 8][4], int first, int rows, int columns)
{
    each(c, [&](float x, int row, int column) {
        if (first + row < rows && column < columns) to.write(first + row, column, narrow<Element>(x));
    });
}

// The running maximum and sum of a warp's 16 rows, two of them in each thread, whose mean of values is `out`.
struct Running {
    float top[2] = {-infinity(), -infinity()}, norm[2] = {0, 0};

    // Turn the scores of a step, times `scale`, into weights and bring what there is to the new maximum. By base 2 at once where a
    // score times log2(e) cannot overflow.
    template <bool base_2> METHOD void take(float (&s)[TILES][4], float (&out)[WIDTH / 8][4], float scale)
    {
        float level[2], fade[2], sum[2] = {0, 0};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float rise = -infinity();
#pragma unroll
            for (int j = 0; j < TILES; j++) rise = larger(rise, larger(s[j][2 * r], s[j][2 * r + 1]));
            rise = larger(rise, shuffle_xor(rise, 1));
            rise = larger(top[r], scale * larger(rise, shuffle_xor(rise, 2)));
            level[r] = rise == -infinity() ? 0 : rise;  // nothing seen yet: every weight is exp(-inf)
            fade[r] = exponential<Element>(top[r] - level[r]);
            top[r] = rise;
        }
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[j][e] = base_2 ? power_of_two<Element>(s[j][e] * (scale * LOG2E) - level[e / 2] * LOG2E)
                                 : exponential<Element>(s[j][e] - level[e / 2]);
                sum[e / 2] += s[j][e];
            }
#pragma unroll
        for (int r = 0; r < 2; r++) norm[r] = norm[r] * fade[r] + over_row(sum[r]);
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) out[j][e] *= fade[e / 2];
    }

    METHOD void write(float (&out)[WIDTH / 8][4], const Matrix<Element>& to, const Matrix<float>& lse, int first, int rows, int columns,
                      float share)
    {
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) out[j][e] = norm[e / 2] == 0 ? 0 : out[j][e] * share / norm[e / 2];
        write_rows(to, out, first, rows, columns);
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (lane() % 4 == 0 && first + row_of(2 * r) < rows)
                lse.write(first + row_of(2 * r), 0, top[r] + natural_logarithm(norm[r]));
    }
};

// The keys of a step that some of the warp's 16 rows see, one bit each.
DEVICE unsigned long long seen_by_warp(const unsigned long long mine)
{
    const unsigned low = warp_or((unsigned)mine);
    return low | (STEP > 32 ? (unsigned long long)warp_or((unsigned)(mine >> 32)) << 32 : 0);
}

// Scores to what a softmax takes, for the rows from i and the columns from j; the keys that are seen.
DEVICE unsigned long long mask(float (&s)[TILES][4], const Pairs& pairs, int i, int j, bool hiding)
{
    unsigned long long mine = 0;
    each(s, [&](float& x, int row, int column) { mine |= (unsigned long long)pairs(x, i + row, j + column) << column; });
    return hiding ? seen_by_warp(mine) : ALL_SEEN;
}

// Drop weights after they were summed.
DEVICE void drop(float (&p)[TILES][4], const Pairs& pairs, int i, int j)
{
    if (MASKED && pairs.dropping) each(p, [&](float& x, int row, int column) { x = pairs.kept(i + row, j + column) ? x : 0; });
}

// From score and gradient by the weight to the weight after dropout and the gradient by the score.
DEVICE void weight_grad(float& s, float& dp, const Pairs& pairs, int i, int j, float lse, float delta)
{
    const bool seen = pairs(s, i, j), kept = seen && pairs.kept(i, j);
    const float p = seen ? exponential<Element>(s - lse) : 0;
    const float d = !MASKED || kept ? dp * pairs.share : 0;
    dp = seen ? p * (d - delta) : 0;
    s = !MASKED || kept ? p * pairs.share : 0;
}

// For a step of keys: rows are queries.
DEVICE void weight_grads(
    float (&s)[TILES][4], float (&ds)[TILES][4], const Pairs& pairs, int i, int j, const float (&lse)[2], const float (&delta)[2])
{
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            weight_grad(s[n][e], ds[n][e], pairs, i + row_of(e), j + 8 * n + column_of(e), lse[e / 2], delta[e / 2]);
}

// The weight of a pair from its score, which is not scaled yet, and its row's log-sum-exp.
template <bool base_2> METHOD float weight_of(float s, float scale, float lse)
{
    return base_2 ? power_of_two<Element>(s * (scale * LOG2E) - lse * LOG2E) : exponential<Element>(s * scale - lse);
}

// For a whole step of keys, which every query sees, without dropout: from scores to weights, and to the gradients of the products.
template <bool base_2>
METHOD void whole_weight_grads(float (&s)[TILES][4], float (&ds)[TILES][4], float scale_of_s, float scale, const float (&lse)[2],
                               const float (&delta)[2])
{
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = weight_of<base_2>(s[n][e], scale_of_s, lse[e / 2]);
            ds[n][e] = s[n][e] * (ds[n][e] * scale - delta[e / 2] * scale);
        }
}

// Log-sum-exp and delta of a step of queries, for all warps.
DEVICE void load_rows(const Tile<float>& rows, const Matrix<float>& lses, const Matrix<float>& deltas, int first, int N)
{
    for (int e = thread_index(); e < STEP; e += THREADS) {
        rows.put(0, e, first + e < N ? lses.read(first + e, 0) : -infinity());
        rows.put(1, e, first + e < N ? deltas.read(first + e, 0) : 0);
    }
}

// For a step of queries: rows are keys.
DEVICE void weight_grads_of_keys(float (&s)[TILES][4], float (&ds)[TILES][4], const Pairs& pairs, const Tile<float>& rows, int i, int j)
{
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const int column = 8 * n + column_of(side);
            const float lse = rows.get(0, column), delta = rows.get(1, column);
#pragma unroll
            for (int r = 0; r < 2; r++) weight_grad(s[n][2 * r + side], ds[n][2 * r + side], pairs, i + column, j + row_of(2 * r), lse, delta);
        }
}

// As load_rows, in the background, for queries that are all there.
DEVICE void copy_rows(const Tile<float>& rows, int at, const Matrix<float>& lses, const Matrix<float>& deltas, int first)
{
#pragma unroll
    for (int begin = 0; begin < 2 * STEP; begin += THREADS) {
        const int e = begin + thread_index(), i = e % STEP;
        if (e < 2 * STEP) copy_number(rows, e / STEP, at + i, e < STEP ? lses : deltas, first + i, 0);
    }
}

// As whole_weight_grads, for a step of queries that all see every key of the block: rows are keys.
template <bool base_2>
METHOD void whole_weight_grads_of_keys(float (&s)[TILES][4], float (&ds)[TILES][4], float scale_of_s, float scale, const Tile<float>& rows, int at)
{
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const int column = 8 * n + column_of(side);
            const float lse = rows.get(0, at + column), delta = rows.get(1, at + column);
#pragma unroll
            for (int e = side; e < 4; e += 2) {
                s[n][e] = weight_of<base_2>(s[n][e], scale_of_s, lse);
                ds[n][e] = s[n][e] * (ds[n][e] * scale - delta * scale);
            }
        }
}

// Add the gradient of the scores to that of a float mask.
DEVICE void add_mask_grad(float (&ds)[TILES][4], const Matrix<float>& to, const Pairs& pairs, int i, int j)
{
    each(ds, [&](float x, int row, int column) {
        if (i + row < pairs.N && j + column < pairs.M) to.add(i + row, j + column, x);
    });
}

// The sum over row i of output times its gradient, in all four lanes that share the row; 0 for a query that sees no key.
DEVICE float delta_of(const Matrix<Element>& d_out, const Matrix<Element>& out, int i, bool sees, int columns)
{
    float sum = 0;
    if (sees)
        for (int e = lane() % 4; e < columns; e += 4) sum += widen(d_out.read(i, e)) * widen(out.read(i, e));
    return over_row(sum);
}

// What a thread needs of its two queries; delta is left where the kernel of the keys reads it.
DEVICE void rows_of_query(float (&lse)[2], float (&delta)[2], const Matrix<Element>& d_out, const Matrix<Element>& out,
                          const Matrix<float>& lses, const Matrix<float>& deltas, int first, int rows, int columns)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int i = first + row_of(2 * r);
        lse[r] = i < rows ? lses.read(i, 0) : -infinity();
        delta[r] = delta_of(d_out, out, i, lse[r] != -infinity(), columns);
        if (i < rows && lane() % 4 == 0) deltas.write(i, 0, delta[r]);
    }
}
