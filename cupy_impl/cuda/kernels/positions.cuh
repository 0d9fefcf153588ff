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

// A left factor of STRIP columns: the gradient of a step's scores, each at the table row that it has read.
DEVICE void unskew(const Tile<float>& strip, int at, float (&ds)[TILES][4])
{
    for (int e = lane(); e < ROWS * ROWS; e += LANES) {
        const int row = e / ROWS, column = e % ROWS;
        strip.put(at + row, column < 15 - row ? column : STEP + column, 0);  // what lies before a row's first pair and after its last
    }
    each(ds, [&](float x, int row, int column) { strip.put(at + row, column + 15 - row, x); });
    sync_warp();
}

// Bring the gradients in the strip to the table rows from `first` on, and to their bias.
DEVICE void add_table_grad(const Band& band, const Params& p, int first)
{
    const Matrix<float> to = matrix<float>(p.dr, 0, band.h);
    const auto has = [&](int row) { return row >= 0 && row < p.rows; };
    for (int x = 0; x < STRIP; x += ROWS)
        for (int n = 0; n < p.D; n += 16) {
            float c[2][4];
            clear(c);
            multiply_columns<ROWS>(c, FromStrip<true>{band.strip, band.at, x}, band.q, band.at, OWN, n, p.D);
            each(c, [&](float y, int row, int column) {
                if (has(first + x + row) && n + column < p.D) to.add(first + x + row, n + column, y);
            });
        }
    if (!p.ds.data) return;
    for (int x = lane(); x < STRIP; x += LANES) {
        float sum = 0;
        for (int row = 0; row < ROWS; row++) sum += band.strip.get(band.at + row, x);
        if (has(first + x)) matrix<float>(p.ds, 0, band.h).add(first + x, 0, sum);
    }
}

// What a block of queries and the table rows of a block of keys score, for all warps: rows are queries.
DEVICE void table_scores(const Tile<float>& to, const Tile<Element>& q, const Tile<Element>& r, const Params& p, int h, int first)
{
    for (int job = warp(); job < STEP / ROWS * (RING / 16); job += WARPS) {
        const int row = job / (RING / 16) * ROWS, x = job % (RING / 16) * 16;
        float c[2][4];
        clear(c);
        multiply_rows(c, q, row, r, x, RING, p.D);
        add_row_bias(c, p, h, first + x);
        each(c, [&](float y, int i, int column) { to.put(row + i, x + column, y); });
    }
}
