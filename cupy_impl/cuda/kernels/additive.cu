// Additive attention, forward and backward, without an array of N by M, let alone by A.
//
// The pair (i, j) has the score sum over features a of w_a tanh(zq_ia + zk_ja), for the projected queries zq [B N A] and keys zk [B M A] in
// float32. The tangent is 1 - 2 / (1 + exp(2 zq) exp(2 zk)): the exponentials are taken when projections are loaded, and two features of a
// pair share one division. Projections beyond 10 are NaN in a tile, which sends the pair to the slow way: neighbours take no notice.
//
// A block owns OWN queries (additive_backward_key: keys) of one batch entry, 16 for each warp, and walks over the other side in steps.

#include "softmax.cuh"

struct Params {
    Tensor zq, zk, w, v, out, lse, mask, keep, d_out, delta, dzq, dzk, dw, dv, dm;
    int N, M, A, E, biased, hiding;
    float share;
};

constexpr int FEATURES = 32;  // of a chunk: one for each lane

// The projections of a block's rows and of a step's columns.
struct Sides {
    Matrix<float> rows, columns;
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

DEVICE float exponential_of_projection(float z) { return z <= 10 && z >= -10 ? exponential<float>(2 * z) : infinity() - infinity(); }

DEVICE bool is_nan(float x) { return x != x; }

DEVICE Features features_of(Arena& arena)
{
    Features made;
    made.rows = arena.tile<float>("projected rows", OWN, FEATURES, FEATURES + 1);
    made.columns = arena.tile<float>("projected columns", STEP, FEATURES, FEATURES + 1);
    made.weights = arena.tile<float>("weights", 1, FEATURES, FEATURES);
    return made;
}

// The tangent of a pair from its projections; it is 1 from 20 on.
DEVICE float slow_tangent(const Sides& z, int row, int column, int a, int A)
{
    const float sum = z.read(z.rows, z.n_rows, row, a, A) + z.read(z.columns, z.n_columns, column, a, A);
    return 1 - 2 * reciprocal(1 + exponential<float>(2 * (sum > 20 ? 20 : sum)));
}

// A chunk of some rows.
DEVICE void load_chunk(const Tile<float>& tile, const Sides& z, const Matrix<float>& from, int count, int first, int rows, int a, int A)
{
    for (int e = thread_index(); e < count * FEATURES; e += THREADS) {
        const int row = e / FEATURES, column = e % FEATURES;
        tile.put(row, column, exponential_of_projection(z.read(from, rows, first + row, a + column, A)));
    }
}

// A chunk from feature `a` on, for the whole block, between barriers.
DEVICE void load_chunks(const Features& f, const Sides& z, const Params& p, int first, int step, int a)
{
    sync_block();
    load_chunk(f.rows, z, z.rows, OWN, first, z.n_rows, a, p.A);
    load_chunk(f.columns, z, z.columns, STEP, step, z.n_columns, a, p.A);
    const Matrix<float> w = matrix<float>(p.w, 0, 0);
    if (thread_index() < FEATURES) f.weights.put(0, thread_index(), a + thread_index() < p.A ? w.read(0, a + thread_index()) : 0);
    sync_block();
}

// The scores of a step.
DEVICE void add_scores(float (&s)[TILES][4], const Features& f, const Sides& z, const Params& p, int first, int step)
{
    clear(s);
    const int at = ROWS * warp();
    for (int a = 0; a < p.A; a += FEATURES) {
        load_chunks(f, z, p, first, step, a);
        if (first + at >= z.n_rows) continue;
        for (int k = 0; k < FEATURES && a + k < p.A; k += 2) {
            const float w0 = f.weights.get(0, k), w1 = f.weights.get(0, k + 1);
            float row0[2], row1[2];
#pragma unroll
            for (int r = 0; r < 2; r++) row0[r] = f.rows.get(at + row_of(2 * r), k), row1[r] = f.rows.get(at + row_of(2 * r), k + 1);
#pragma unroll
            for (int j = 0; j < TILES; j++)
#pragma unroll
                for (int side = 0; side < 2; side++) {
                    const int column = 8 * j + column_of(side);
                    const float column0 = f.columns.get(column, k), column1 = f.columns.get(column, k + 1);
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const float x0 = 1 + row0[r] * column0, x1 = 1 + row1[r] * column1, shared = 2 * reciprocal(x0 * x1);
                        float t0 = 1 - x1 * shared, t1 = 1 - x0 * shared;
                        if (is_nan(shared)) {
                            t0 = slow_tangent(z, first + at + row_of(2 * r), step + column, a + k, p.A);
                            t1 = slow_tangent(z, first + at + row_of(2 * r), step + column, a + k + 1, p.A);
                        }
                        s[j][2 * r + side] += w0 * t0 + w1 * t1;
                    }
                }
        }
    }
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
            const float of_row = f.rows.get(row, k);
            float sum = 0;
            for (int column = 0; column < STEP; column++) {
                const float d = ds.get(row, column);
                float t = 1 - 2 * reciprocal(1 + of_row * f.columns.get(column, k));
                if (is_nan(t)) t = slow_tangent(z, first + row, step + column, a + k, p.A);
                sum += d * (1 - t * t);
                of_weight += d * t;
            }
            if (a + k < p.A) matrix<float>(to, b, 0).add(first + row, a + k, sum * f.weights.get(0, k));
        }
        if (dw && a + k < p.A) matrix<float>(*dw, 0, 0).add(0, a + k, of_weight);
    }
}

KERNEL(additive_forward)
{
    const int b = block_x(), first = block_y() * OWN, at = ROWS * warp();
    Arena arena;
    const Tile<Element> v = tile_of(arena, "values", STEP);
    Tile<float> strip{};
    if (!NARROW) strip = arena.tile<float>("strip", OWN, STRIP, STRIP_LD);
    const Features features = features_of(arena);
    const Pairs pairs = pairs_of(p.mask, p.biased, p.keep, b, 0, p.N, p.M, p.share);
    const Sides z{matrix<float>(p.zq, b, 0), matrix<float>(p.zk, b, 0), p.N, p.M, false};
    const Matrix<Element> values = matrix<Element>(p.v, b, 0);
    Running running;
    clear(running.out);
    for (int step = 0; step < p.M; step += STEP) {
        float s[TILES][4];
        add_scores(s, features, z, p, first, step);
        load(v, 0, STEP, values, step, p.E, [&](int j) { return j < p.M; }, Unchanged{});
        sync_block();
        if (first + at >= p.N) continue;
        const unsigned long long seen = mask(s, pairs, first + at, step, p.hiding);
        running.take(s);
        drop(s, pairs, first + at, step);
        multiply_scores(running.out, s, strip, v, p.E, seen);
    }
    running.write(matrix<Element>(p.out, b, 0), matrix<float>(p.lse, b, 0), first + at, p.N, p.E, p.share);
}

// The gradients of the projected queries and, in part, of the weights of the features and of the mask.
KERNEL(additive_backward_query)
{
    const int b = block_x(), first = block_y() * OWN, at = ROWS * warp();
    Arena arena;
    const Tile<Element> d_out = tile_of(arena, "gradient of the output", OWN), v = tile_of(arena, "values", STEP);
    const Tile<float> gradients = arena.tile<float>("gradients of the scores", OWN, STEP, STEP + 1);
    const Features features = features_of(arena);
    const Pairs pairs = pairs_of(p.mask, p.biased, p.keep, b, 0, p.N, p.M, p.share);
    const Sides z{matrix<float>(p.zq, b, 0), matrix<float>(p.zk, b, 0), p.N, p.M, true};
    const Matrix<Element> values = matrix<Element>(p.v, b, 0), d_outs = matrix<Element>(p.d_out, b, 0);
    const Matrix<Element> outs = matrix<Element>(p.out, b, 0);
    const Matrix<float> lses = matrix<float>(p.lse, b, 0), deltas = matrix<float>(p.delta, b, 0);
    const auto sees = [&](int i) { return i < p.N && lses.read(i, 0) != -infinity(); };
    load(d_out, 0, OWN, d_outs, first, p.E, sees, Unchanged{});
    float lse[2], delta[2];
    rows_of_query(lse, delta, d_outs, outs, lses, deltas, first + at, p.N, p.E);
    for (int step = 0; step < p.M; step += STEP) {
        float s[TILES][4], ds[TILES][4];
        add_scores(s, features, z, p, first, step);
        load(v, 0, STEP, values, step, p.E, [&](int j) { return j < p.M; }, Unchanged{});
        sync_block();
        clear(ds);
        if (first + at < p.N) {
            multiply_rows(ds, d_out, at, v, 0, STEP, p.E);
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
    const int b = block_x(), first = block_y() * OWN, at = ROWS * warp();
    Arena arena;
    const Tile<Element> v = tile_of(arena, "values", OWN), d_out = tile_of(arena, "gradient of the output", STEP);
    Tile<float> strip{};
    if (!NARROW) strip = arena.tile<float>("strip", OWN, STRIP, STRIP_LD);
    const Tile<float> gradients = arena.tile<float>("gradients of the scores", OWN, STEP, STEP + 1);
    const Features features = features_of(arena);
    const Pairs pairs = pairs_of(p.mask, p.biased, p.keep, b, 0, p.N, p.M, p.share);
    const Sides z{matrix<float>(p.zk, b, 0), matrix<float>(p.zq, b, 0), p.M, p.N, true};
    const Matrix<Element> d_outs = matrix<Element>(p.d_out, b, 0);
    const Matrix<float> lses = matrix<float>(p.lse, b, 0), deltas = matrix<float>(p.delta, b, 0);
    const auto sees = [&](int i) { return i < p.N && lses.read(i, 0) != -infinity(); };
    load(v, 0, OWN, matrix<Element>(p.v, b, 0), first, p.E, [&](int j) { return j < p.M; }, Unchanged{});
    float dv[WIDTH / 8][4];
    clear(dv);
    for (int step = 0; step < p.N; step += STEP) {
        float s[TILES][4], ds[TILES][4];
        add_scores(s, features, z, p, first, step);
        load(d_out, 0, STEP, d_outs, step, p.E, sees, Unchanged{});
        sync_block();
        clear(ds);
        if (first + at < p.M) {
            multiply_rows(ds, v, at, d_out, 0, STEP, p.E);
            weight_grads_of_keys(s, ds, pairs, lses, deltas, step, first + at);
            multiply_scores(dv, s, strip, d_out, p.E);
        }
        each(ds, [&](float x, int row, int column) { gradients.put(at + row, column, x); });
        add_feature_grads(gradients, features, z, p, p.dzk, nullptr, b, first, step);
    }
    write_rows(matrix<Element>(p.dv, b, 0), dv, first + at, p.M, p.E);
}
