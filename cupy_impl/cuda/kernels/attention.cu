// Attention by scaled inner products, forward and backward, without a matrix of N by M: masks, causal rows, ALiBi and relative positions.
//
// A block owns OWN queries (backward_key: keys) of one head, 16 for each warp, and walks over the other side in steps of STEP.
// The pair (i, j) has the score scale * ((q_i + u) . k_j + (q_i + w) . r_x + s_x) with row x = first - i + j of a table r with a bias s,
// which are there where RELATIVE is 1, plus slope * (j - (M - N + i)), plus a float mask.

#include "softmax.cuh"
#include "parameters.cuh"

#include "positions.cuh"

DEVICE Joined joined(const Tensor& bias, int h)
{
    Joined made{};
    made.given = bias.data;
    if (made.given) made.bias = matrix<Element>(bias, 0, h);
    return made;
}

// Where a walk of queries from `first` over the keys ends.
DEVICE int end_of_keys(const Params& p, int first)
{
    return p.causal && first + OWN < p.N ? first + OWN + (p.M - p.N) : p.M;
}

DEVICE int start_of_queries(const Params& p, int first)
{
    const int row = first - (p.M - p.N);
    return p.causal && row > 0 ? row / STEP * STEP : 0;
}

// The keys before this one: whole steps that every query of the block sees, of keys, values and table rows that can be copied.
DEVICE int end_of_whole_steps(const Params& p, const Matrix<Element>& keys, const Matrix<Element>& values, const Band& band, int first)
{
    if (p.mask.data || p.keep.data || !can_be_copied(keys, p.D) || !can_be_copied(values, p.E)) return 0;
    int end = p.causal && first + 1 < p.N ? first + 1 + (p.M - p.N) : p.M;
    if (RELATIVE) {
        if (band.base + OWN < 0 || !can_be_copied(matrix<Element>(p.r, 0, band.h), p.D)) return 0;
        const int rows = p.rows - (band.base + OWN);
        end = end < rows ? end : rows;
    }
    return end > 0 ? end / STEP * STEP : 0;
}

// Scores with what ALiBi adds, for the rows from i and the columns from j.
DEVICE void add_slopes(float (&s)[TILES][4], const Params& p, float slope, int i, int j)
{
    each(s, [&](float& x, int row, int column) { x = x * p.scale + slope * (float)(j + column - (i + row) - (p.M - p.N)); });
}

KERNEL(forward)
{
    const int b = block_x() / p.H, h = block_x() % p.H, first = block_y() * OWN, at = ROWS * warp();
    Arena arena;
    const Tile<Element> q = tile_of(arena, "queries", OWN), k = tile_of(arena, "keys", 2 * STEP), v = tile_of(arena, "values", 2 * STEP);
    Band band{};
    if (RELATIVE) band.q = tile_of(arena, "queries for positions", OWN), band.r = tile_of(arena, "table", COPIED_RING);
    if (RELATIVE || !NARROW) band.strip = arena.tile<float>("strip", OWN, STRIP, STRIP_LD);
    band.at = at, band.base = p.first - first - (OWN - 1), band.h = h, band.ring = COPIED_RING;

    const Pairs pairs = pairs_of(p, b, h);
    const Matrix<Element> queries = matrix<Element>(p.q, b, h), keys = matrix<Element>(p.k, b, h), values = matrix<Element>(p.v, b, h);
    const auto is_query = [&](int i) { return i < p.N; };
    const auto is_key = [&](int j) { return j < p.M; };
    load(q, 0, OWN, queries, first, p.D, is_query, joined(p.u, h));
    if (RELATIVE) {
        load(band.q, 0, OWN, queries, first, p.D, is_query, joined(p.w, h));
        load_ring(band, p, 0, OWN, false);
        sync_block();
        band.begin(p);
    }
    Running running;
    clear(running.out);
    const bool idle = first + at >= p.N;
    const auto copy_step = [&](int step) {
        copy(k, step % (2 * STEP), STEP, keys, step, p.D);
        copy(v, step % (2 * STEP), STEP, values, step, p.E);
        if (RELATIVE) copy(band.r, (step + OWN) % COPIED_RING, STEP, matrix<Element>(p.r, 0, h), band.base + step + OWN, p.D);
    };
    const int whole = end_of_whole_steps(p, keys, values, band, first), end = end_of_keys(p, first);
    int step = 0;
    if (whole) copy_step(0);
    const auto walk = [&](auto added) {  // a bias of the table, or slopes
        for (; step < whole; step += STEP) {
            wait_for_copies();
            sync_block();
            if (step + STEP < whole) copy_step(step + STEP);
            if (idle) continue;
            float s[TILES][4];
            clear(s);
            if (RELATIVE) band.skew<added.yes>(s, p, step);
            multiply_rows(s, q, at, k, step % (2 * STEP), NO_RING, p.D);
            if (added.yes && !RELATIVE) {
                add_slopes(s, p, pairs.slope, first + at, step);
                running.take<false>(s, 1);
            } else {
                running.take<true>(s, p.scale);
            }
            multiply_scores(running.out, s, band.strip, v, step % (2 * STEP), p.E);
        }
    };
    if (RELATIVE ? p.s.data : p.slopes.data)
        walk(Truth<true>{});
    else
        walk(Truth<false>{});
    for (; step < end; step += STEP) {
        if (step) sync_block();
        load(k, 0, STEP, keys, step, p.D, is_key, Unchanged{});
        load(v, 0, STEP, values, step, p.E, is_key, Unchanged{});
        if (RELATIVE) load_ring(band, p, step + OWN, STEP, false);
        sync_block();
        if (idle) continue;
        float s[TILES][4];
        clear(s);
        if (RELATIVE) band.skew<true>(s, p, step);
        multiply_rows(s, q, at, k, 0, NO_RING, p.D);
        const unsigned long long seen = mask(s, pairs, first + at, step, p.hiding);
        running.take<false>(s, 1);
        drop(s, pairs, first + at, step);
        multiply_scores(running.out, s, band.strip, v, 0, p.E, seen);
    }
    running.write(matrix<Element>(p.out, b, h), matrix<float>(p.lse, b, h), first + at, p.N, p.E, p.share);
}

// Add the sum over a warp's rows to the gradient of a bias of the queries.
DEVICE void add_bias_grad(const Tensor& to, float (&c)[WIDTH / 8][4], int h, int columns)
{
    if (!to.data) return;
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (8 * j >= columns) continue;
            float sum = c[j][e] + c[j][2 + e];
#pragma unroll
            for (int other = 4; other < LANES; other *= 2) sum += shuffle_xor(sum, other);
            if (lane() < 4 && 8 * j + column_of(e) < columns) matrix<float>(to, 0, h).add(0, 8 * j + column_of(e), sum);
        }
}

// The gradients of a block of queries, and their parts of those of the mask and of all that positions add.
KERNEL(backward_query)
{
    const int b = block_x() / p.H, h = block_x() % p.H, first = block_y() * OWN, at = ROWS * warp();
    Arena arena;
    const Tile<Element> q = tile_of(arena, "queries", OWN), d_out = tile_of(arena, "gradient of the output", OWN);
    const Tile<Element> k = tile_of(arena, "keys", STEP), v = tile_of(arena, "values", STEP);
    Band band{};
    if (RELATIVE) band.q = tile_of(arena, "queries for positions", OWN), band.r = tile_of(arena, "table", RING);
    if (RELATIVE || !NARROW) band.strip = arena.tile<float>("strip", OWN, STRIP, STRIP_LD);
    band.at = at, band.base = p.first - first - (OWN - 1), band.h = h, band.ring = RING;
    Unskewed gradients{};
    gradients.at = at;
    if (RELATIVE) gradients.ds = arena.tile<Element>("gradients of the scores", OWN, RING, RING + VECTOR);

    const Pairs pairs = pairs_of(p, b, h);
    const Matrix<Element> queries = matrix<Element>(p.q, b, h), keys = matrix<Element>(p.k, b, h), values = matrix<Element>(p.v, b, h);
    const Matrix<Element> d_outs = matrix<Element>(p.d_out, b, h), outs = matrix<Element>(p.out, b, h);
    const Matrix<float> lses = matrix<float>(p.lse, b, h), deltas = matrix<float>(p.delta, b, h);
    const auto sees = [&](int i) { return i < p.N && lses.read(i, 0) != -infinity(); };
    const auto is_key = [&](int j) { return j < p.M; };
    load(q, 0, OWN, queries, first, p.D, sees, joined(p.u, h));
    load(d_out, 0, OWN, d_outs, first, p.E, sees, Unchanged{});
    if (RELATIVE) {
        load(band.q, 0, OWN, queries, first, p.D, sees, joined(p.w, h));
        load_ring(band, p, 0, OWN, true);
        gradients.begin();
        sync_block();
        band.begin(p);
    }
    float lse[2], delta[2];
    rows_of_query(lse, delta, d_outs, outs, lses, deltas, first + at, p.N, p.E);
    float by_content[WIDTH / 8][4], by_position[WIDTH / 8][4];
    clear(by_content);
    clear(by_position);
    const bool idle = first + at >= p.N;
    const int end = end_of_keys(p, first), whole = (end + STEP - 1) / STEP * STEP;
    const int last = RELATIVE && end > 0 ? whole + OWN : end;  // table rows that the last keys have read
    for (int step = 0; step < last; step += STEP) {
        float s[TILES][4], ds[TILES][4];
        clear(ds);
        if (step) sync_block();
        if (step < end) {
            if (p.hiding)
                load(k, 0, STEP, keys, step, p.D, is_key, Finite{});
            else
                load(k, 0, STEP, keys, step, p.D, is_key, Unchanged{});
            load(v, 0, STEP, values, step, p.E, is_key, Unchanged{});
            if (RELATIVE) load_ring(band, p, step + OWN, STEP, true);
            sync_block();
        }
        if (step < end && !idle) {
            clear(s);
            if (RELATIVE) band.skew<true>(s, p, step);
            multiply_rows(s, q, at, k, 0, NO_RING, p.D);
            multiply_rows(ds, d_out, at, v, 0, NO_RING, p.E);
            weight_grads(s, ds, pairs, first + at, step, lse, delta);
            if (MASKED && p.dm.data) add_mask_grad(ds, matrix<float>(p.dm, b, h), pairs, first + at, step);
            each(ds, [&](float& x, int, int) { x *= p.scale; });
            if (RELATIVE && p.ds.data) add_bias_grad_of_table(band, p, ds, step);
            if (RELATIVE) gradients.take(ds, step);
            multiply_scores(by_content, ds, band.strip, k, 0, p.D);
        } else if (RELATIVE && !idle) {
            gradients.take(ds, step);
        }
        if (RELATIVE) {
            sync_block();
            if (!idle) multiply_columns<STEP>(by_position, OfQueries<Element>{gradients.ds, at, step}, band.r, step % RING, RING, 0, p.D);
            add_table_grad(gradients, band, p, step);
        }
    }
    add_bias_grad(p.du, by_content, h, p.D);
    if (RELATIVE) add_bias_grad(p.dw, by_position, h, p.D);
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) by_content[j][e] += by_position[j][e];
    write_rows(matrix<Element>(p.dq, b, h), by_content, first + at, p.N, p.D);
}

// The gradients of a block of keys and values, over the queries that may see it. Scores are transposed: rows are keys.
KERNEL(backward_key)
{
    const int b = block_x() / p.H, h = block_x() % p.H, first = block_y() * OWN, at = ROWS * warp();
    Arena arena;
    const Tile<Element> k = tile_of(arena, "keys", OWN), v = tile_of(arena, "values", OWN);
    const Tile<Element> q = tile_of(arena, "queries", STEP), d_out = tile_of(arena, "gradient of the output", STEP);
    Tile<Element> qw{}, r{};
    Tile<float> strip{}, table{};
    if (RELATIVE) {
        qw = tile_of(arena, "queries for positions", STEP), r = tile_of(arena, "table", RING);
        table = arena.tile<float>("scores of the table", STEP, RING, RING + 5);  // so that a warp reads of 32 banks
    }
    if (!NARROW) strip = arena.tile<float>("strip", OWN, STRIP, STRIP_LD);
    const Tile<float> rows = arena.tile<float>("rows of queries", 2, STEP, STEP);

    const Pairs pairs = pairs_of(p, b, h);
    const Matrix<Element> queries = matrix<Element>(p.q, b, h), d_outs = matrix<Element>(p.d_out, b, h);
    const Matrix<float> lses = matrix<float>(p.lse, b, h), deltas = matrix<float>(p.delta, b, h);
    const auto sees = [&](int i) { return i < p.N && lses.read(i, 0) != -infinity(); };
    const auto is_key = [&](int j) { return j < p.M; };
    load(k, 0, OWN, matrix<Element>(p.k, b, h), first, p.D, is_key, Unchanged{});
    load(v, 0, OWN, matrix<Element>(p.v, b, h), first, p.E, is_key, Unchanged{});
    float dk[WIDTH / 8][4], dv[WIDTH / 8][4];
    clear(dk);
    clear(dv);
    const bool idle = first + at >= p.M;
    for (int step = start_of_queries(p, first); step < p.N; step += STEP) {
        sync_block();
        load(q, 0, STEP, queries, step, p.D, sees, joined(p.u, h));
        load(d_out, 0, STEP, d_outs, step, p.E, sees, Unchanged{});
        load_rows(rows, lses, deltas, step, p.N);
        if (RELATIVE) {
            const int low = p.first - (step + STEP - 1) + first;
            load(qw, 0, STEP, queries, step, p.D, sees, joined(p.w, h));
            load(r, 0, RING, matrix<Element>(p.r, 0, h), low, p.D, [&](int i) { return i >= 0 && i < p.rows; }, Unchanged{});
            sync_block();
            table_scores(table, qw, r, p, h, low);
        }
        sync_block();
        if (idle) continue;
        float s[TILES][4], ds[TILES][4];
        clear(s);
        if (RELATIVE) each(s, [&](float& x, int row, int column) { x = table.get(column, at + row + STEP - 1 - column); });
        multiply_rows(s, k, at, q, 0, NO_RING, p.D);
        clear(ds);
        multiply_rows(ds, v, at, d_out, 0, NO_RING, p.E);
        weight_grads_of_keys(s, ds, pairs, rows, step, first + at);
        each(ds, [&](float& x, int, int) { x *= p.scale; });
        multiply_scores(dv, s, strip, d_out, 0, p.E);
        multiply_scores(dk, ds, strip, q, 0, p.D);
    }
    write_rows(matrix<Element>(p.dk, b, h), dk, first + at, p.M, p.D);
    write_rows(matrix<Element>(p.dv, b, h), dv, first + at, p.M, p.E);
}
