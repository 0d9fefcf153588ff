// The gradients of attention.cu, by two kernels that make the scores anew. Included at its end.
#pragma once

#include "softmax.cuh"

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
    const int b = block_head() / p.H, h = block_head() % p.H, first = last_block_rows() * OWN, at = ROWS * warp();
    constexpr int keys_held = RELATIVE ? STEP : 2 * STEP;  // positions have a barrier behind which the next keys can take their place
    Arena arena;
    const Tile<Element> q = tile_of(arena, "queries", OWN), d_out = tile_of(arena, "gradient of the output", OWN);
    const Tile<Element> k = tile_of(arena, "keys", keys_held), v = tile_of(arena, "values", keys_held);
    Band band{};
    if (RELATIVE) band.q = tile_of(arena, "queries for positions", OWN), band.r = tile_of(arena, "table", COPIED_RING);
    if (RELATIVE || !NARROW) band.strip = arena.tile<float>("strip", OWN, STRIP, STRIP_LD);
    band.at = at, band.base = p.first - first - (OWN - 1), band.h = h, band.ring = COPIED_RING;
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
    const auto copy_step = [&](int step) {
        copy(k, step % keys_held, STEP, keys, step, p.D);
        copy(v, step % keys_held, STEP, values, step, p.E);
        if (RELATIVE) copy(band.r, (step + OWN) % COPIED_RING, STEP, matrix<Element>(p.r, 0, h), band.base + step + OWN, p.D);
    };
    const auto add_position_grads = [&](int step, bool idle) {
        if (!idle) multiply_columns<STEP>(alone(by_position), OfQueries<Element>{gradients.ds, at, step}, band.r, step % COPIED_RING, COPIED_RING, 0, p.D);
        add_table_grad(gradients, band, p, step);
    };
    const int whole = first + OWN <= p.N ? end_of_whole_steps(p, keys, values, band, first) : 0;
    int step = 0;
    if (whole) copy_step(0);
    const auto walk = [&](auto added) {  // a bias of the table, or slopes
        for (; step < whole; step += STEP) {
            float s[TILES][4], ds[TILES][4];
            clear(s);
            clear(ds);
            wait_for_copies();
            if (RELATIVE) make_finite(band.r, (step + OWN) % COPIED_RING, STEP, p.D);
            sync_block();
            if (!RELATIVE && step + STEP < whole) copy_step(step + STEP);
            if (RELATIVE) band.skew<added.yes>(s, p, step);
            multiply_rows(s, q, at, k, step % keys_held, NO_RING, p.D);
            multiply_rows(ds, d_out, at, v, step % keys_held, NO_RING, p.E);
            if (added.yes && !RELATIVE) {
                add_slopes(s, p, pairs.slope, first + at, step);
                whole_weight_grads<false>(s, ds, 1, p.scale, lse, delta);
            } else {
                whole_weight_grads<NARROW>(s, ds, p.scale, p.scale, lse, delta);
            }
            if (RELATIVE && added.yes) add_bias_grad_of_table(band, p, ds, step);
            if (RELATIVE) gradients.take(ds, step);
            multiply_scores(by_content, ds, band.strip, k, step % keys_held, p.D);
            if (!RELATIVE) continue;
            sync_block();
            if (step + STEP < whole) copy_step(step + STEP);
            add_position_grads(step, false);
        }
    };
    if (RELATIVE ? p.s.data : p.slopes.data)
        walk(Truth<true>{});
    else
        walk(Truth<false>{});
    const bool idle = first + at >= p.N;
    const int end = end_of_keys(p, first, OWN);
    const int last = RELATIVE && end > 0 ? (end + STEP - 1) / STEP * STEP + OWN : end;  // table rows that the last keys have read
    for (; step < last; step += STEP) {
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
            add_position_grads(step, idle);
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

// Steps of queries, from `first` to before `end`.
struct Steps {
    int first, end;

    METHOD bool have(int step) const { return step >= first && step < end; }
};

// The steps of queries that all see every key of the block, where they, their gradients and the table's rows can be copied.
DEVICE Steps whole_steps_of_keys(const Params& p, const Matrix<Element>& queries, const Matrix<Element>& d_outs, int first, int h)
{
    if (p.mask.data || p.keep.data || !can_be_copied(queries, p.D) || !can_be_copied(d_outs, p.E)) return {0, 0};
    int from = p.causal ? first + OWN - 1 - (p.M - p.N) : 0, end = p.N;
    if (RELATIVE) {
        if (!can_be_copied(matrix<Element>(p.r, 0, h), p.D)) return {0, 0};
        const int last = p.first + first + 1, reach = last + OWN - p.rows;
        from = from > reach ? from : reach, end = end < last ? end : last;
    }
    return {from > 0 ? (from + STEP - 1) / STEP * STEP : 0, end > 0 ? end / STEP * STEP : 0};
}

// The gradients of a block of keys and values, over the queries that may see it. Scores are transposed: rows are keys.
KERNEL(backward_key)
{
    const int b = block_head() / p.H, h = block_head() % p.H, first = block_rows() * OWN, at = ROWS * warp();
    Arena arena;
    const Tile<Element> k = tile_of(arena, "keys", OWN), v = tile_of(arena, "values", OWN);
    const Tile<Element> q = tile_of(arena, "queries", 2 * STEP), d_out = tile_of(arena, "gradient of the output", 2 * STEP);
    Tile<Element> qw{}, r{}, biases{};
    Tile<float> strip{}, table{};
    if (RELATIVE) {
        qw = tile_of(arena, "queries for positions", STEP), r = tile_of(arena, "table", RING), biases = tile_of(arena, "biases", 2);
        table = arena.tile<float>("scores of the table", STEP, OWN, OWN + 4);  // so that a warp reads of 32 banks
    }
    if (!NARROW) strip = arena.tile<float>("strip", OWN, STRIP, STRIP_LD);
    const Tile<float> rows = arena.tile<float>("rows of queries", 2, 2 * STEP, 2 * STEP);

    const Pairs pairs = pairs_of(p, b, h);
    const Matrix<Element> queries = matrix<Element>(p.q, b, h), d_outs = matrix<Element>(p.d_out, b, h);
    const Matrix<float> lses = matrix<float>(p.lse, b, h), deltas = matrix<float>(p.delta, b, h);
    const auto sees = [&](int i) { return i < p.N && lses.read(i, 0) != -infinity(); };
    const auto is_key = [&](int j) { return j < p.M; };
    const auto low = [&](int step) { return p.first - (step + STEP - 1) + first; };  // the first row of the table that a step reads
    load(k, 0, OWN, matrix<Element>(p.k, b, h), first, p.D, is_key, Unchanged{});
    load(v, 0, OWN, matrix<Element>(p.v, b, h), first, p.E, is_key, Unchanged{});
    float dk[WIDTH / 8][4], dv[WIDTH / 8][4];
    clear(dk);
    clear(dv);
    const bool idle = first + at >= p.M;
    const auto copy_step = [&](int step, int here, int table_rows) {
        copy(q, here, STEP, queries, step, p.D);
        copy(d_out, here, STEP, d_outs, step, p.E);
        copy_rows(rows, here, lses, deltas, step);
        if (RELATIVE)
            for (int x = 0; x < table_rows; x += STEP) copy(r, ring_place(step, x), STEP, matrix<Element>(p.r, 0, h), low(step) + x, p.D);
    };
    const Steps whole = whole_steps_of_keys(p, queries, d_outs, first, h);
    const auto walk = [&](auto added) {  // a bias of the table, or slopes
        int here = 0;
        for (int step = whole.first; step < whole.end; step += STEP, here = STEP - here) {
            const bool more = step + STEP < whole.end;
            wait_for_copies();
            if (RELATIVE) join_biases(q, here, qw, biases, p.D);
            sync_block();
            if (!RELATIVE && more) copy_step(step + STEP, STEP - here, 0);
            if (RELATIVE) {
                table_scores<added.yes>(table, qw, r, p, h, low(step), step);
                sync_block();
                if (more) copy_step(step + STEP, STEP - here, STEP);
            }
            if (idle) continue;
            float s[TILES][4], ds[TILES][4];
            clear(s);
            clear(ds);
            if (RELATIVE) each(s, [&](float& x, int row, int column) { x = table.get(column, at + row); });
            multiply_rows(s, k, at, q, here, NO_RING, p.D);
            multiply_rows(ds, v, at, d_out, here, NO_RING, p.E);
            if (added.yes && !RELATIVE) {
                each(s, [&](float& x, int row, int column) {
                    x = x * p.scale + pairs.slope * (float)(first + at + row - (step + column) - (p.M - p.N));
                });
                whole_weight_grads_of_keys<false>(s, ds, 1, p.scale, rows, here);
            } else {
                whole_weight_grads_of_keys<NARROW>(s, ds, p.scale, p.scale, rows, here);
            }
            multiply_scores(dv, s, strip, d_out, here, p.E);
            multiply_scores(dk, ds, strip, q, here, p.D);
        }
    };
    if (whole.first < whole.end) {
        copy_step(whole.first, 0, RING);
        if (RELATIVE) {
            load_bias(biases, 0, joined(p.u, h), p.D);
            load_bias(biases, 1, joined(p.w, h), p.D);
            sync_block();
        }
        if (RELATIVE ? p.s.data : p.slopes.data)
            walk(Truth<true>{});
        else
            walk(Truth<false>{});
    }
    for (int step = start_of_queries(p, first); step < p.N; step += STEP) {
        if (whole.have(step)) continue;
        sync_block();
        load(q, 0, STEP, queries, step, p.D, sees, joined(p.u, h));
        load(d_out, 0, STEP, d_outs, step, p.E, sees, Unchanged{});
        load_rows(rows, lses, deltas, step, p.N);
        if (RELATIVE) {
            load(qw, 0, STEP, queries, step, p.D, sees, joined(p.w, h));
            load(r, 0, RING, matrix<Element>(p.r, 0, h), low(step), p.D, [&](int i) { return i >= 0 && i < p.rows; }, Unchanged{});
            sync_block();
            table_scores<true>(table, qw, r, p, h, low(step), 0);
        }
        sync_block();
        if (idle) continue;
        float s[TILES][4], ds[TILES][4];
        clear(s);
        if (RELATIVE) each(s, [&](float& x, int row, int column) { x = table.get(column, at + row); });
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
