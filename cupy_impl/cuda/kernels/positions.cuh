// Relative positions roll: 16 queries and STEP keys read a band of STEP + 15 rows, and the next step's band begins where this one's
// last 16 columns lie. Each warp keeps its band in a strip of its own, row a of which is read from column 15 - a on: the skew needs no
// barrier of the block.
//
// Included after the parameters of attention.cu.
#pragma once

#include "softmax.cuh"

// Scores of table rows, not skewed yet: c += the bias of row first + column.
template <int tiles> METHOD void add_row_bias(float (&c)[tiles][4], const Params& p, int h, int first)
{
    if (!p.s.data) return;
    const Matrix<Element> bias = matrix<Element>(p.s, 0, h);
    each(c, [&](float& x, int, int column) {
        const int row = first + column;
        if (row >= 0 && row < p.rows) x += widen(bias.read(row, 0));
    });
}

// The rolling band of a warp's 16 queries.
struct Band {
    Tile<Element> q, r;   // queries with their bias, and a ring of rows of the table
    Tile<float> strip;
    int at, base, h;      // the warp's first row in q and strip; the table row at the ring's beginning
    int ring;

    // Columns of the band: the scores of table rows base + x, base + x + 1, ...
    template <bool biased, int tiles> METHOD void columns(float (&c)[tiles][4], const Params& p, int x)
    {
        clear(c);
        multiply_rows(c, q, at, r, x % ring, ring, p.D);
        if (biased) add_row_bias(c, p, h, base + x);
    }

    METHOD int start() const { return OWN - ROWS - at; }  // of the warp's band in the block's

    // What the first step takes over from a step that was not.
    METHOD void begin(const Params& p)
    {
        float c[2][4];
        columns<true>(c, p, start());
        each(c, [&](float x, int row, int column) { strip.put(at + row, column, x); });
    }

    // Set the scores of the pairs of a step of keys to what their positions give.
    template <bool biased> METHOD void skew(float (&s)[TILES][4], const Params& p, int step)
    {
        float c[TILES][4];
        columns<biased>(c, p, start() + step + ROWS);
        each(c, [&](float x, int row, int column) { strip.put(at + row, ROWS + column, x); });
        sync_warp();
        each(s, [&](float& x, int row, int column) { x = strip.get(at + row, column + 15 - row); });
        sync_warp();
        each(c, [&](float x, int row, int column) {
            if (column >= STEP - ROWS) strip.put(at + row, column - (STEP - ROWS), x);
        });
    }
};

DEVICE void load_ring(const Band& band, const Params& p, int from, int rows, bool finite)
{
    const Matrix<Element> table = matrix<Element>(p.r, 0, band.h);
    const auto has = [&](int i) { return i >= 0 && i < p.rows; };
    if (finite)
        load(band.r, from % band.ring, rows, table, band.base + from, p.D, has, Finite{});
    else
        load(band.r, from % band.ring, rows, table, band.base + from, p.D, has, Unchanged{});
}

// The gradients of a block's scores, each at the table row that it has read: a ring of RING rows. With a step of keys its first STEP rows
// are complete, for the pairs of each row of queries follow upon those of the step before: these rows are added to the table's gradient once
// for the whole block. Half types are rounded once, as factors of products.
struct Unskewed {
    Tile<Element> ds;
    int at;  // the warp's first row

    METHOD void begin() const
    {
        for (int e = thread_index(); e < OWN * RING; e += THREADS) ds.put(e / RING, e % RING, Element{});
    }

    METHOD void take(float (&x)[TILES][4], int step) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = at + row_of(2 * r), place = (unsigned)(step + OWN - 1 - row + column_of(0)) % RING;
#pragma unroll
            for (int j = 0; j < TILES; j++)
#pragma unroll
                for (int side = 0; side < 2; side++)
                    ds.put(row, wrapped(place + 8 * j + side, RING), narrow<Element>(x[j][2 * r + side]));
        }
    }
};

// Left factors from the ring: rows of queries, or (transposed) of the table.
template <class T> struct OfQueries {
    Tile<T> ds;
    int at, first;
    METHOD void operator()(unsigned (&a)[4], int k, int) const
    {
        load_matrices<false>(a, ds, at + lane() % 16, (first + k) % RING + lane() / 16 * 8);
    }
    METHOD void operator()(float (&a)[2], int k, int) const
    {
        a[0] = widen(ds.get(at + row_of(0), (first + k) % RING)), a[1] = widen(ds.get(at + row_of(2), (first + k) % RING));
    }
};

template <class T> struct OfTable {
    Tile<T> ds;
    int first;
    METHOD void operator()(unsigned (&a)[4], int k, int) const
    {
        load_matrices<true>(a, ds, k + lane() / 16 * 8 + lane() % 8, first + lane() / 8 % 2 * 8);
    }
    METHOD void operator()(float (&a)[2], int k, int) const
    {
        a[0] = widen(ds.get(k, first + row_of(0))), a[1] = widen(ds.get(k, first + row_of(2)));
    }
};

// Add 16 rows by 16 columns to those of a matrix that are there.
DEVICE void add_rows(const Matrix<float>& to, float (&c)[2][4], int first, int rows, int first_column, int columns)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int i = first + row_of(2 * r), column = first_column + column_of(0);
        if (i < 0 || i >= rows || column >= columns) continue;
        const Matrix<float> place = to.from(i, column);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int side = 0; side < 2; side++)
                if (column + 8 * j + side < columns) place.add(0, 8 * j + side, c[j][2 * r + side]);
    }
}

// Bring the gradients of the rows that a step completes to the table, 16 rows by 16 columns after the other for each warp.
DEVICE void add_table_grad(const Unskewed& g, const Band& band, const Params& p, int step)
{
    const Matrix<float> to = matrix<float>(p.dr, 0, band.h);
    for (int job = warp(); job < STEP / ROWS * (WIDTH / 16); job += WARPS) {
        const int x = step + job % (STEP / ROWS) * ROWS, n = job / (STEP / ROWS) * 16;
        if (n >= p.D) break;
        float c[2][4];
        clear(c);
        multiply_columns<OWN>(alone(c), OfTable<Element>{g.ds, x % RING}, band.q, 0, NO_RING, n, p.D);
        add_rows(to, c, band.base + x, p.rows, n, p.D);
    }
}

// Bring the gradients of a step's scores to the bias of the table, by the warp's own strip, of which the band's next step needs the begin.
DEVICE void add_bias_grad_of_table(const Band& band, const Params& p, float (&ds)[TILES][4], int step)
{
    const Tile<float>& strip = band.strip;
    float carried[2][4];
    sync_warp();
    each(carried, [&](float& x, int row, int column) { x = strip.get(band.at + row, column); });
    sync_warp();
    for (int e = lane(); e < ROWS * ROWS; e += LANES) {
        const int row = e / ROWS, column = e % ROWS;
        strip.put(band.at + row, column < 15 - row ? column : STEP + column, 0);  // before a row's first pair and after its last
    }
    each(ds, [&](float x, int row, int column) { strip.put(band.at + row, column + 15 - row, x); });
    sync_warp();
    for (int x = lane(); x < STRIP; x += LANES) {
        float sum = 0;
        for (int row = 0; row < ROWS; row++) sum += strip.get(band.at + row, x);
        const int i = band.base + band.start() + step + x;
        if (i >= 0 && i < p.rows) matrix<float>(p.ds, 0, band.h).add(i, 0, sum);
    }
    sync_warp();
    each(carried, [&](float x, int row, int column) { strip.put(band.at + row, column, x); });
}

// Where the ring of backward_key has row x of those that a step reads: with each step they begin STEP rows earlier.
DEVICE int ring_place(int step, int x) { return wrapped(x + (RING - step % RING), RING) % RING; }

// The scores of a step of queries and the table rows of a block of keys, for all warps: rows are queries, columns keys. 16 queries read
// OWN + 15 rows of the table, of which this step's are from `low` on.
template <bool biased>
METHOD void table_scores(const Tile<float>& to, const Tile<Element>& q, const Tile<Element>& r, const Params& p, int h, int low, int step)
{
    constexpr int across = OWN / 16 + 1;
    for (int job = warp(); job < STEP / ROWS * across; job += WARPS) {
        const int row = job / across * ROWS, x = STEP - ROWS - row + job % across * 16;
        float c[2][4];
        clear(c);
        multiply_rows(c, q, row, r, ring_place(step, x), NO_RING, p.D);
        if (biased) add_row_bias(c, p, h, low + x);
        each(c, [&](float y, int i, int column) {
            const int key = x + column - (STEP - 1) + row + i;
            if (key >= 0 && key < OWN) to.put(row + i, key, y);
        });
    }
}

// Queries that this thread has copied: in place with the one bias, and elsewhere with the other.
DEVICE void join_biases(const Tile<Element>& q, int at, const Tile<Element>& qw, const Tile<Element>& biases, int columns)
{
    each_pack(STEP, columns, [&](int row, int below, int column) {
        const Tile<Element> own = q.from(at + row, column);
        const Pack<Element> x = own.get_pack(below, 0);
        own.put_pack(below, 0, sum(x, biases.get_pack(0, column)));
        qw.from(row, column).put_pack(below, 0, sum(x, biases.get_pack(1, column)));
    });
}
