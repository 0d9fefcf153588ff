// Attention by scaled inner products, forward and backward, without a matrix of N by M: masks, causal rows, ALiBi and relative positions.
//
// A block owns OWN queries (backward_key: keys; forward: GROUPS OWN queries) of one head, and walks over the other side in steps of STEP.
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

// Where a walk of so many queries from `first` over the keys ends.
DEVICE int end_of_keys(const Params& p, int first, int queries)
{
    return p.causal && first + queries < p.N ? first + queries + (p.M - p.N) : p.M;
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

// Call f(group) for the groups of 16 rows that a warp has.
template <class F> METHOD void each_group(F f)
{
#pragma unroll
    for (int g = 0; g < GROUPS; g++) f(g);
}

// Whether one of so many queries from i may see key j or one behind it.
DEVICE bool any_seen(const Pairs& pairs, int i, int queries, int j) { return !pairs.causal || i + queries > pairs.N || pairs.reach(i + queries - 1) > j; }

KERNEL(forward)
{
    constexpr int own = GROUPS * OWN, rows = GROUPS * ROWS;
    const int b = block_head() / p.H, h = block_head() % p.H, first = last_block_rows() * own, at = rows * warp();
    Arena arena;
    const Tile<Element> q = tile_of(arena, "queries", own), k = tile_of(arena, "keys", 2 * STEP), v = tile_of(arena, "values", 2 * STEP);
    Band band{};
    if (RELATIVE) band.q = tile_of(arena, "queries for positions", OWN), band.r = tile_of(arena, "table", COPIED_RING);
    if (RELATIVE || !NARROW) band.strip = arena.tile<float>("strip", OWN, STRIP, STRIP_LD);
    band.at = at, band.base = p.first - first - (OWN - 1), band.h = h, band.ring = COPIED_RING;

    const Pairs pairs = pairs_of(p, b, h);
    const Matrix<Element> queries = matrix<Element>(p.q, b, h), keys = matrix<Element>(p.k, b, h), values = matrix<Element>(p.v, b, h);
    const auto is_query = [&](int i) { return i < p.N; };
    const auto is_key = [&](int j) { return j < p.M; };
    load(q, 0, own, queries, first, p.D, is_query, joined(p.u, h));
    if (RELATIVE) {
        load(band.q, 0, OWN, queries, first, p.D, is_query, joined(p.w, h));
        load_ring(band, p, 0, OWN, false);
        sync_block();
        band.begin(p);
    }
    Running running[GROUPS];
    float out[GROUPS][WIDTH / 8][4];
    each_group([&](int g) { clear(out[g]); });
    const bool idle = first + at >= p.N;
    const auto copy_step = [&](int step) {
        copy(k, step % (2 * STEP), STEP, keys, step, p.D);
        copy(v, step % (2 * STEP), STEP, values, step, p.E);
        if (RELATIVE) copy(band.r, (step + OWN) % COPIED_RING, STEP, matrix<Element>(p.r, 0, h), band.base + step + OWN, p.D);
    };
    const int whole = end_of_whole_steps(p, keys, values, band, first), end = end_of_keys(p, first, own);
    int step = 0;
    if (whole) copy_step(0);
    const auto walk = [&](auto added) {  // a bias of the table, or slopes
        for (; step < whole; step += STEP) {
            wait_for_copies();
            sync_block();
            if (step + STEP < whole) copy_step(step + STEP);
            if (idle) continue;
            float s[GROUPS][TILES][4];
            each_group([&](int g) { clear(s[g]); });
            if (RELATIVE) band.skew<added.yes>(s[0], p, step);
            multiply_rows(s, q, at, k, step % (2 * STEP), NO_RING, p.D);
            each_group([&](int g) {
                if (added.yes && !RELATIVE) {
                    add_slopes(s[g], p, pairs.slope, first + at + ROWS * g, step);
                    running[g].template take<false>(s[g], out[g], 1);
                } else {
                    running[g].template take<true>(s[g], out[g], p.scale);
                }
            });
            multiply_scores(out, s, band.strip, v, step % (2 * STEP), p.E);
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
        if (idle || GROUPS > 1 && !any_seen(pairs, first + at, rows, step)) continue;
        each_group([&](int g) {
            const int i = first + at + ROWS * g;
            float s[TILES][4];
            clear(s);
            if (RELATIVE) band.skew<true>(s, p, step);
            multiply_rows(s, q, at + ROWS * g, k, 0, NO_RING, p.D);
            const unsigned long long seen = mask(s, pairs, i, step, p.hiding);
            running[g].take<false>(s, out[g], 1);
            drop(s, pairs, i, step);
            multiply_scores(out[g], s, band.strip, v, 0, p.E, seen);
        });
    }
    each_group([&](int g) {
        running[g].write(out[g], matrix<Element>(p.out, b, h), matrix<float>(p.lse, b, h), first + at + ROWS * g, p.N, p.E, p.share);
    });
}

#include "gradients.cuh"
