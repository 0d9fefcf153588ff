// Additive attention, forward and backward, without an array of N by M, let alone by A.
//
// The pair (i, j) has the score sum over features a of w_a tanh(zq_ia + zk_ja), for the projected queries zq [B N A] and keys zk [B M A] in
// float32. The tangent is 1 - 2 / (1 + xq xk), by exponentials xq = exp(2 zq) and xk = exp(2 zk) that are taken beforehand, and two features
// share one reciprocal: with x = 1 + xq xk,
//
//     w0 t0 + w1 t1 = (w0 + w1) - 2 (w0 x1 + w1 x0) / (x0 x1).
//
// Where a projection is beyond 10, or no number, its exponential is NaN and so are the scores of its pairs, which are then made anew from
// the projections: neighbours take no notice.
//
// A block owns OWN queries (additive_backward_key: keys) of one batch entry, 16 for each warp, and walks over the other side in steps.

#include "softmax.cuh"
#include "additive_parameters.cuh"

constexpr int FEATURES = 32;  // of a chunk: one for each lane
constexpr int FOUR = 4;       // features, or columns, that are read at once

// The projections of a block's rows and of a step's columns, and their exponentials.
struct Sides {
    Matrix<float> rows, columns, row_exponentials, column_exponentials;
    int n_rows, n_columns;
    bool only_finite;  // what a visible pair would take from NaN and infinity is in the weights of its row already

    METHOD float read(const Matrix<float>& z, int rows, int row, int a, int A) const
    {
        const float x = row < rows && a < A ? z.read(row, a) : 0;
        return only_finite && !finite(x) ? 0 : x;
    }
};

// Chunks of features of the rows and columns of a step: their exponentials, and their weights.
struct Features {
    Tile<float> rows, columns, weights;
};

DEVICE bool is_nan(float x) { return x != x; }

DEVICE Features features_of(Arena& arena)
{
    Features made;
    made.rows = arena.tile<float>("exponentials of rows", OWN, FEATURES, FEATURES + FOUR);
    made.columns = arena.tile<float>("exponentials of columns", STEP, FEATURES, FEATURES + FOUR);
    made.weights = arena.tile<float>("weights", 1, FEATURES, FEATURES);
    return made;
}

// The tangent of a pair from its projections; it is 1 from 20 on.
DEVICE float slow_tangent(const Sides& z, int row, int column, int a, int A)
{
    const float sum = z.read(z.rows, z.n_rows, row, a, A) + z.read(z.columns, z.n_columns, column, a, A);
    return 1 - 2 * reciprocal(1 + exponential<float>(2 * (sum > 20 ? 20 : sum)));
}

// What the sums of two weights lose by rounding, summed.
DEVICE float lost_of_weights(const Tensor& weights, int A)
{
    const Matrix<float> w = matrix<float>(weights, 0, 0);
    float lost = 0;
    for (int a = 0; a + 1 < A; a += 2) {
        const float w0 = w.read(0, a), w1 = w.read(0, a + 1), sum = w0 + w1, of_w1 = sum - w0;
        lost += (w0 - (sum - of_w1)) + (w1 - of_w1);
    }
    return lost;
}

// A chunk of some rows; 0 beyond the last row and feature.
DEVICE void load_chunk(const Tile<float>& tile, int count, const Matrix<float>& x, int first, int rows, int a, int A)
{
    const bool wide = x.wide();
    for (int e = FOUR * thread_index(); e < count * FEATURES; e += FOUR * THREADS) {
        const int row = first + e / FEATURES, column = a + e % FEATURES;
        Pack<float> pack{};
        if (row < rows && wide && column + FOUR <= A)
            pack = x.read_pack(row, column);
        else
            for (int k = 0; k < FOUR; k++)
                if (row < rows && column + k < A) pack.x[k] = x.read(row, column + k);
        tile.put_pack(e / FEATURES, e % FEATURES, pack);
    }
}

// A chunk from feature `a` on, for the whole block, between barriers.
DEVICE void load_chunks(const Features& f, const Sides& z, const Params& p, int first, int step, int a)
{
    sync_block();
    load_chunk(f.rows, OWN, z.row_exponentials, first, z.n_rows, a, p.A);
    load_chunk(f.columns, STEP, z.column_exponentials, step, z.n_columns, a, p.A);
    const Matrix<float> w = matrix<float>(p.w, 0, 0);
    if (thread_index() < FEATURES) f.weights.put(0, thread_index(), a + thread_index() < p.A ? w.read(0, a + thread_index()) : 0);
    sync_block();
}

// What two features add to the score of a pair.
DEVICE float score_of_two(const float* w, const float* row, const float* column)
{
    const float x0 = 1 + row[0] * column[0], x1 = 1 + row[1] * column[1];
    return (w[0] + w[1]) + (-2 * w[0] * x1 + -2 * w[1] * x0) * reciprocal(x0 * x1);
}

// Add what sums of two weights have lost; make scores that are no number anew, from the projections.
DEVICE void repair_scores(float (&s)[TILES][4], const Sides& z, const Params& p, int first, int step, float lost)
{
    unsigned wrong = 0, place = 0;
    each(s, [&](float& x, int, int) {
        wrong |= (unsigned)!finite(x) << place++;
        x = finite(x) ? x + lost : 0;
    });
    if (wrong == 0) return;
    const Matrix<float> w = matrix<float>(p.w, 0, 0);
#pragma unroll 1
    for (int a = 0; a < p.A; a++) {
        place = 0;
        each(s, [&](float& x, int row, int column) {
            if (wrong >> place++ & 1) x += w.read(0, a) * slow_tangent(z, first + row, step + column, a, p.A);
        });
    }
}

// The scores of a step.
DEVICE void add_scores(float (&s)[TILES][4], const Features& f, const Sides& z, const Params& p, int first, int step, float lost)
{
    clear(s);
    const int at = ROWS * warp();
    for (int a = 0; a < p.A; a += FEATURES) {
        load_chunks(f, z, p, first, step, a);
        if (first + at >= z.n_rows) continue;
#pragma unroll 1
        for (int k = 0; k < FEATURES && a + k < p.A; k += FOUR) {
            const Pack<float> w = f.weights.get_pack(0, k);
            const Pack<float> row[2] = {f.rows.get_pack(at + row_of(0), k), f.rows.get_pack(at + row_of(2), k)};
#pragma unroll
            for (int j = 0; j < TILES; j++)
#pragma unroll
                for (int side = 0; side < 2; side++) {
                    const Pack<float> column = f.columns.get_pack(8 * j + column_of(side), k);
#pragma unroll
                    for (int r = 0; r < 2; r++)
#pragma unroll
                        for (int two = 0; two < FOUR; two += 2)
                            s[j][2 * r + side] += score_of_two(&w.x[two], &row[r].x[two], &column.x[two]);
                }
        }
    }
    if (first + at < z.n_rows) repair_scores(s, z, p, first + at, step, lost);
}

// Of one row and feature: the sums over a step's columns of the gradients of the scores, times the tangent and its derivative.
struct RowGrad {
    float of_row = 0, of_weight = 0;

    METHOD void take(float d, float t) { of_row += d * (1 - t * t), of_weight += d * t; }
};

DEVICE RowGrad fast_row_grad(const Tile<float>& ds, const Features& f, int row, int k)
{
    RowGrad sum;
    const float x = f.rows.get(row, k);
#pragma unroll 2
    for (int column = 0; column < STEP; column += FOUR) {
        const Pack<float> d = ds.get_pack(row, column);
#pragma unroll
        for (int two = 0; two < FOUR; two += 2) {
            const float x0 = 1 + x * f.columns.get(column + two, k), x1 = 1 + x * f.columns.get(column + two + 1, k);
            const float shared = 2 * reciprocal(x0 * x1);
            sum.take(d.x[two], 1 - x1 * shared), sum.take(d.x[two + 1], 1 - x0 * shared);
        }
    }
    return sum;
}

DEVICE RowGrad slow_row_grad(const Tile<float>& ds, const Sides& z, int first, int row, int step, int a, int A)
{
    RowGrad sum;
#pragma unroll 1
    for (int column = 0; column < STEP; column++) sum.take(ds.get(row, column), slow_tangent(z, first + row, step + column, a, A));
    return sum;
}

// Sum what the gradients of a step's scores give each feature of a block's rows (a lane has one), and of the weights where `dw` is given.
DEVICE void add_feature_grads(
    const Tile<float>& ds, const Features& f, const Sides& z, const Params& p, const Tensor& to, const Tensor* dw, int b, int first, int step)
{
    for (int a = 0; a < p.A; a += FEATURES) {
        load_chunks(f, z, p, first, step, a);
        const int k = lane();
        float of_weight = 0;
        for (int row = warp(); row < OWN && first + row < z.n_rows; row += WARPS) {
            RowGrad sum = fast_row_grad(ds, f, row, k);
            if (is_nan(sum.of_row)) sum = slow_row_grad(ds, z, first, row, step, a + k, p.A);
            if (a + k < p.A) matrix<float>(to, b, 0).add(first + row, a + k, sum.of_row * f.weights.get(0, k));
            of_weight += sum.of_weight;
        }
        if (dw && a + k < p.A) matrix<float>(*dw, 0, 0).add(0, a + k, of_weight);
    }
}

DEVICE Sides sides_of(const Tensor& rows, const Tensor& columns, const Tensor& row_exponentials, const Tensor& column_exponentials, int b)
{
    Sides z{};
    z.rows = matrix<float>(rows, b, 0), z.columns = matrix<float>(columns, b, 0);
    z.row_exponentials = matrix<float>(row_exponentials, b, 0), z.column_exponentials = matrix<float>(column_exponentials, b, 0);
    z.n_rows = rows.size[2], z.n_columns = columns.size[2];
    return z;
}

KERNEL(additive_forward)
{
    const int b = block_head(), first = block_rows() * OWN, at = ROWS * warp();
    Arena arena;
    const Tile<Element> v = tile_of(arena, "values", STEP);
    Tile<float> strip{};
    if (!NARROW) strip = arena.tile<float>("strip", OWN, STRIP, STRIP_LD);
    const Features features = features_of(arena);
    const Pairs pairs = pairs_of(p.mask, p.biased, p.keep, b, 0, p.N, p.M, p.share);
    const Sides z = sides_of(p.zq, p.zk, p.xq, p.xk, b);
    const float lost = lost_of_weights(p.w, p.A);
    const Matrix<Element> values = matrix<Element>(p.v, b, 0);
    Running running;
    float out[WIDTH / 8][4];
    clear(out);
    for (int step = 0; step < p.M; step += STEP) {
        float s[TILES][4];
        add_scores(s, features, z, p, first, step, lost);
        load(v, 0, STEP, values, step, p.E, [&](int j) { return j < p.M; }, Unchanged{});
        sync_block();
        if (first + at >= p.N) continue;
        const unsigned long long seen = mask(s, pairs, first + at, step, p.hiding);
        running.take<false>(s, out, 1);
        drop(s, pairs, first + at, step);
        multiply_scores(out, s, strip, v, 0, p.E, seen);
    }
    running.write(out, matrix<Element>(p.out, b, 0), matrix<float>(p.lse, b, 0), first + at, p.N, p.E, p.share);
}

// The gradients of the projected queries and, in part, of the weights of the features and of the mask.
KERNEL(additive_backward_query)
{
    const int b = block_head(), first = block_rows() * OWN, at = ROWS * warp();
    Arena arena;
    const Tile<Element> d_out = tile_of(arena, "gradient of the output", OWN), v = tile_of(arena, "values", STEP);
    const Tile<float> gradients = arena.tile<float>("gradients of the scores", OWN, STEP, STEP + FOUR);
    const Features features = features_of(arena);
    const Pairs pairs = pairs_of(p.mask, p.biased, p.keep, b, 0, p.N, p.M, p.share);
    Sides z = sides_of(p.zq, p.zk, p.xq, p.xk, b);
    z.only_finite = true;
    const float lost = lost_of_weights(p.w, p.A);
    const Matrix<Element> values = matrix<Element>(p.v, b, 0), d_outs = matrix<Element>(p.d_out, b, 0);
    const Matrix<Element> outs = matrix<Element>(p.out, b, 0);
    const Matrix<float> lses = matrix<float>(p.lse, b, 0), deltas = matrix<float>(p.delta, b, 0);
    const auto sees = [&](int i) { return i < p.N && lses.read(i, 0) != -infinity(); };
    load(d_out, 0, OWN, d_outs, first, p.E, sees, Unchanged{});
    float lse[2], delta[2];
    rows_of_query(lse, delta, d_outs, outs, lses, deltas, first + at, p.N, p.E);
    for (int step = 0; step < p.M; step += STEP) {
        float s[TILES][4], ds[TILES][4];
        add_scores(s, features, z, p, first, step, lost);
        load(v, 0, STEP, values, step, p.E, [&](int j) { return j < p.M; }, Unchanged{});
        sync_block();
        clear(ds);
        if (first + at < p.N) {
            multiply_rows(ds, d_out, at, v, 0, NO_RING, p.E);
            weight_grads(s, ds, pairs, first + at, step, lse, delta);
            if (MASKED && p.dm.data) add_mask_grad(ds, matrix<float>(p.dm, b, 0), pairs, first + at, step);
        }
        each(ds, [&](float x, int row, int column) { gradients.put(at + row, column, x); });
        add_feature_grads(gradients, features, z, p, p.dzq, &p.dw, b, first, step);
    }
}

// The gradients of the projected keys and of the values. Scores are transposed: rows are keys.
KERNEL(additive_backward_key)
{
    const int b = block_head(), first = block_rows() * OWN, at = ROWS * warp();
    Arena arena;
    const Tile<Element> v = tile_of(arena, "values", OWN), d_out = tile_of(arena, "gradient of the output", STEP);
    Tile<float> strip{};
    if (!NARROW) strip = arena.tile<float>("strip", OWN, STRIP, STRIP_LD);
    const Tile<float> gradients = arena.tile<float>("gradients of the scores", OWN, STEP, STEP + FOUR);
    const Tile<float> rows = arena.tile<float>("rows of queries", 2, STEP, STEP);
    const Features features = features_of(arena);
    const Pairs pairs = pairs_of(p.mask, p.biased, p.keep, b, 0, p.N, p.M, p.share);
    Sides z = sides_of(p.zk, p.zq, p.xk, p.xq, b);
    z.only_finite = true;
    const float lost = lost_of_weights(p.w, p.A);
    const Matrix<Element> d_outs = matrix<Element>(p.d_out, b, 0);
    const Matrix<float> lses = matrix<float>(p.lse, b, 0), deltas = matrix<float>(p.delta, b, 0);
    const auto sees = [&](int i) { return i < p.N && lses.read(i, 0) != -infinity(); };
    load(v, 0, OWN, matrix<Element>(p.v, b, 0), first, p.E, [&](int j) { return j < p.M; }, Unchanged{});
    float dv[WIDTH / 8][4];
    clear(dv);
    for (int step = 0; step < p.N; step += STEP) {
        float s[TILES][4], ds[TILES][4];
        add_scores(s, features, z, p, first, step, lost);
        load(d_out, 0, STEP, d_outs, step, p.E, sees, Unchanged{});
        load_rows(rows, lses, deltas, step, p.N);
        sync_block();
        clear(ds);
        if (first + at < p.M) {
            multiply_rows(ds, v, at, d_out, 0, NO_RING, p.E);
            weight_grads_of_keys(s, ds, pairs, rows, step, first + at);
            multiply_scores(dv, s, strip, d_out, 0, p.E);
        }
        each(ds, [&](float x, int row, int column) { gradients.put(at + row, column, x); });
        add_feature_grads(gradients, features, z, p, p.dzk, nullptr, b, first, step);
    }
    write_rows(matrix<Element>(p.dv, b, 0), dv, first + at, p.M, p.E);
}
