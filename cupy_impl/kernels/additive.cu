// Additive attention, forward and backward, without an array of N by M, let alone by A.
//
// The pair (i, j) has the score sum over features a of w_a tanh(zq_ia + zk_ja), for the projected queries zq [B N A] and keys zk [B M A] in
// float32. Where no |zq| + |zk| is over 20 (`largest` holds both maxima), exp(2 zq) and exp(2 zk) are taken when they are loaded, and a
// tangent 1 - 2 / (1 + exp(2 zq) exp(2 zk)) costs half a reciprocal: two share one division.
//
// A block owns OWN queries (additive_backward_key: keys) of one batch entry, 16 for each warp, and walks over the other side in steps.

#include "softmax.cuh"

struct Params {
    Tensor zq, zk, w, largest, v, out, lse, mask, keep, d_out, delta, dzq, dzk, dw, dv, dm;
    int N, M, A, E, biased, hiding;
    float share;
};

constexpr int FEATURES = 32;  // of a chunk: one for each lane

// Chunks of features of the rows and columns of a step, and their weights.
struct Features {
    Tile<float> rows, columns, weights;
    bool tame;

    METHOD float loaded(float z) const { return tame ? exponential<float>(2 * z) : z; }
    // exp(2 z) for a pair; a tangent is 1 from 20 on, and the product of two would overflow
    METHOD float together(float row, float column) const { return tame ? row * column : exponential<float>(2 * smaller(row + column, 20)); }

    // Two tangents by one division.
    METHOD void tangents(float& t0, float& t1, float row0, float column0, float row1, float column1) const
    {
        const float x0 = 1 + together(row0, column0), x1 = 1 + together(row1, column1), shared = 2 * reciprocal(x0 * x1);
        t0 = 1 - x1 * shared, t1 = 1 - x0 * shared;
    }
};

DEVICE Features features_of(Arena& arena, const Params& p)
{
    Features made;
    made.rows = arena.tile<float>("projected rows", OWN, FEATURES, FEATURES + 1);
    made.columns = arena.tile<float>("projected columns", STEP, FEATURES, FEATURES + 1);
    made.weights = arena.tile<float>("weights", 1, FEATURES, FEATURES);
    const Matrix<float> largest = matrix<float>(p.largest, 0, 0);
    made.tame = largest.read(0, 0) + largest.read(0, 1) <= 20;
    return made;
}

// A chunk of some rows. Without NaN and infinity where that is asked: what a visible pair would take from them is in its row's weights.
DEVICE void load_chunk(
    const Tile<float>& tile, const Features& f, const Matrix<float>& z, int count, int first, int rows, int a, int A, bool only_finite)
{
    for (int e = thread_index(); e < count * FEATURES; e += THREADS) {
        const int row = e / FEATURES, column = e % FEATURES;
        const bool there = first + row < rows && a + column < A;
        const float x = there ? z.read(first + row, a + column) : 0;
        tile.put(row, column, f.loaded(only_finite && !finite(x) ? 0 : x));
    }
}

// The projections of a block's rows and of a step's columns.
struct Sides {
    Matrix<float> rows, columns;
    int n_rows, n_columns;
    bool only_finite;
};

// A chunk from feature `a` on, for the whole block, between barriers.
DEVICE void load_chunks(const Features& f, const Sides& z, const Params& p, int first, int step, int a)
{
    sync_block();
    load_chunk(f.rows, f, z.rows, OWN, first, z.n_rows, a, p.A, z.only_finite);
    load_chunk(f.columns, f, z.columns, STEP, step, z.n_columns, a, p.A, z.only_finite);
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
                        float t0, t1;
                        f.tangents(t0, t1, row0[r], column0, row1[r], column1);
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
            for (int column = 0; column < STEP; column += 2) {
                float t0, t1;
                f.tangents(t0, t1, of_row, f.columns.get(column, k), of_row, f.columns.get(column + 1, k));
                const float d0 = ds.get(row, column), d1 = ds.get(row, column + 1);
                sum += d0 * (1 - t0 * t0) + d1 * (1 - t1 * t1);
                of_weight += d0 * t0 + d1 * t1;
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
    const Features features = features_of(arena, p);
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
    const Features features = features_of(arena, p);
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
            if (p.dm.data) add_mask_grad(ds, matrix<float>(p.dm, b, 0), pairs, first + at, step);
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
    const Features features = features_of(arena, p);
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
