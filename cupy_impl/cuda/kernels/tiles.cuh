// Blocks of matrices in shared memory, and their products: 16 rows for each warp, accumulated in float32 in the layout of mma.
//
// OWN     rows that a block owns, 16 for each warp
// STEP    columns of scores in one step of its walk
// WIDTH   the widest head: multiples of 16 up to the true width take part
// GROUPS  of 16 rows that a warp of attention's forward kernel has: they share what is read of the other side
#pragma once

#include "primitives.cuh"

constexpr int WARPS = OWN / ROWS, THREADS = WARPS * LANES;
constexpr int TILES = STEP / 8;               // of 16 x 8 scores, for one warp in one step
constexpr int LD = WIDTH + VECTOR;            // 16 bytes more than a row: eight rows lie in different banks
constexpr int STRIP = STEP + ROWS;            // a warp's own strip: its rows by the columns of a step, skewed
constexpr int STRIP_LD = STEP + 24;           // rows 24 banks apart: pairs of a half warp lie in different banks
constexpr int RING = OWN + STEP;              // rows of the table that a step reads
constexpr int COPIED_RING = RING + STEP;      // and those that are copied for the next one meanwhile
static_assert(OWN % STEP == 0 && STEP % 16 == 0 && STEP <= 64 && WIDTH % 16 == 0, "blocks");

DEVICE Tile<Element> tile_of(Arena& arena, const char* name, int rows) { return arena.tile<Element>(name, rows, WIDTH, LD); }

constexpr int NO_RING = 0;

DEVICE int wrapped(int row, int rows) { return rows == NO_RING || row < rows ? row : row - rows; }

template <int tiles> METHOD void clear(float (&c)[tiles][4])
{
#pragma unroll
    for (int j = 0; j < tiles; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[j][e] = 0;
}

// Sums of one group as those of an array of groups.
template <int tiles> METHOD float (&alone(float (&c)[tiles][4]))[1][tiles][4] { return reinterpret_cast<float (&)[1][tiles][4]>(c); }

// Call f(accumulator, row in the warp's 16, column) for every accumulator of this thread.
template <int tiles, class F> METHOD void each(float (&c)[tiles][4], F f)
{
#pragma unroll
    for (int j = 0; j < tiles; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) f(c[j][e], row_of(e), 8 * j + column_of(e));
}

// Rows first, first + 1, ... of x into `rows` rows of a tile, element by element through change(x, column); 0 where has(row) is false and
// in what fills the last columns up to a multiple of 16.
template <class T, class Has, class Change>
METHOD void load(const Tile<T>& tile, int at, int rows, const Matrix<T>& x, int first, int columns, Has has, Change change)
{
    constexpr int packs = WIDTH / VECTOR;
    const bool wide = x.wide();
    for (int e = thread_index(); e < rows * packs; e += THREADS) {
        const int row = e / packs, column = e % packs * VECTOR, i = first + row;
        if (column >= (columns + 15) / 16 * 16) continue;
        const bool there = has(i);
        Pack<T> pack{};
        if (there && wide && column + VECTOR <= columns)
            pack = x.read_pack(i, column);
        else if (there)
            for (int k = 0; k < VECTOR; k++)
                if (column + k < columns) pack.x[k] = x.read(i, column + k);
        if (there)
            for (int k = 0; k < VECTOR; k++)
                if (column + k < columns) pack.x[k] = change(pack.x[k], column + k);
        tile.put_pack(at + row, column, pack);
    }
}

// Whether copy() can take a matrix of so many columns: no column is left over, and no pack of 16 bytes is split.
template <class T> METHOD bool can_be_copied(const Matrix<T>& x, int columns) { return x.wide() && columns % 16 == 0; }

// Call f(row, below, column) for each pack of 16 bytes that this thread has in `rows` rows: it is in row + below, and `below` is known to the
// compiler.
template <class F> METHOD void each_pack(int rows, int columns, F f)
{
    constexpr int packs = WIDTH / VECTOR, across = packs < THREADS ? packs : THREADS, down = THREADS / across;
    static_assert(STEP % down == 0, "threads have as many rows of a step each");
#pragma unroll
    for (int turn = 0; turn < packs / across; turn++) {
        const int column = (turn * across + thread_index() % across) * VECTOR;
        if (column >= columns) continue;
#pragma unroll
        for (int below = 0; below < rows; below += down) f(thread_index() / across, below, column);
    }
}

// Rows first, first + 1, ... of x, which are all there, into `rows` rows of a tile, in the background.
template <class T> METHOD void copy(const Tile<T>& tile, int at, int rows, const Matrix<T>& x, int first, int columns)
{
    each_pack(rows, columns, [&](int row, int below, int column) {
        copy_pack(tile.from(at + row, column), below, 0, x.from(first + row, column), below, 0);
    });
}

// Put 0 for what is no number in rows that this thread has copied: see Finite.
DEVICE void make_finite(const Tile<Element>& tile, int at, int rows, int columns)
{
    each_pack(rows, columns, [&](int row, int below, int column) {
        const Tile<Element> own = tile.from(at + row, column);
        if (all_finite(own.get_pack(below, 0))) return;
#pragma unroll 1
        for (int i = 0; i < VECTOR; i++)
            if (!finite(widen(own.get(below, i)))) own.put(below, i, Element{});
    });
}

struct Unchanged {
    METHOD Element operator()(Element x, int) const { return x; }
};

// Without NaN and infinity, for factors of a gradient: a visible pair has carried them to the weights of its row already, and a hidden
// one, of weight 0, must not.
struct Finite {
    METHOD Element operator()(Element x, int) const { return finite(widen(x)) ? x : Element{}; }
};

// Plus a bias of the head, where there is one.
struct Joined {
    Matrix<Element> bias;
    bool given;
    METHOD Element operator()(Element x, int column) const
    {
        return given ? narrow<Element>(widen(x) + widen(bias.read(0, column))) : x;
    }
};

// A bias into a row of a tile; 0 where there is none.
DEVICE void load_bias(const Tile<Element>& tile, int at, const Joined& joined, int columns)
{
    load(tile, at, 1, joined.bias, 0, columns, [&](int) { return joined.given; }, Unchanged{});
}

// c += a b^T for groups of 16 rows of a from `at_a` and the rows of b from `at_b`, which go on at 0 after `ring`.
template <int groups, int tiles>
METHOD void multiply_rows(float (&c)[groups][tiles][4], const Tile<Element>& a, int at_a, const Tile<Element>& b, int at_b, int ring, int depth)
{
    if constexpr (NARROW) {
        const Tile<Element> rows = a.from(at_a + lane() % 16, lane() / 16 * 8);
        Tile<Element> columns[tiles / 2];
#pragma unroll
        for (int j = 0; j < tiles; j += 2)
            columns[j / 2] = b.from(wrapped(at_b + 8 * j + lane() / 16 * 8 + lane() % 8, ring), lane() / 8 % 2 * 8);
#pragma unroll
        for (int k = 0; k < WIDTH; k += 16) {
            if (k >= depth) continue;
            unsigned left[groups][4];
#pragma unroll
            for (int g = 0; g < groups; g++) load_matrices<false>(left[g], rows, ROWS * g, k);
#pragma unroll
            for (int j = 0; j < tiles; j += 2) {
                unsigned r[4];
                load_matrices<false>(r, columns[j / 2], 0, k);
                const unsigned right[2][2] = {{r[0], r[1]}, {r[2], r[3]}};
#pragma unroll
                for (int g = 0; g < groups; g++) multiply<Element, 2>(&c[g][j], left[g], right);
            }
        }
    } else {
        static_assert(groups == 1, "float32 has no registers for two");
        for (int k = 0; k < depth; k += VECTOR) {
            const Pack<Element> a0 = a.get_pack(at_a + row_of(0), k), a1 = a.get_pack(at_a + row_of(2), k);
#pragma unroll
            for (int j = 0; j < tiles; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const Pack<Element> x = b.get_pack(wrapped(at_b + 8 * j + column_of(e), ring), k);
#pragma unroll
                    for (int i = 0; i < VECTOR; i++) {
                        c[0][j][e] += widen(a0.x[i]) * widen(x.x[i]);
                        c[0][j][2 + e] += widen(a1.x[i]) * widen(x.x[i]);
                    }
                }
        }
    }
}

template <int tiles>
METHOD void multiply_rows(float (&c)[tiles][4], const Tile<Element>& a, int at_a, const Tile<Element>& b, int at_b, int ring, int depth)
{
    multiply_rows(alone(c), a, at_a, b, at_b, ring, depth);
}

// Left factors of a product of columns: a group's fragment of mma that begins at column k, or two rows' elements at column k.

template <bool transposed> struct FromStrip {
    Tile<float> strip;
    int row, column;
    METHOD float get(int i, int k) const { return transposed ? strip.get(row + k, column + i) : strip.get(row + i, column + k); }
    METHOD void operator()(unsigned (&a)[4], int k, int) const
    {
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const int i = lane() / 4 + m % 2 * 8, at = k + lane() % 4 * 2 + m / 2 * 8;
            a[m] = rounded_pair<Element>(get(i, at), get(i, at + 1));
        }
    }
    METHOD void operator()(float (&a)[2], int k, int) const { a[0] = get(row_of(0), k), a[1] = get(row_of(2), k); }
};

// Accumulators have the layout of a left fragment already.
template <int groups> struct FromScores {
    const float (&p)[groups][TILES][4];
    METHOD void operator()(unsigned (&a)[4], int k, int g) const
    {
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const float* x = p[g][k / 8 + m / 2] + m % 2 * 2;
            a[m] = rounded_pair<Element>(x[0], x[1]);
        }
    }
};

// For right factors of neighbouring rows k, k + 1: all ones where a row is seen.
DEVICE unsigned seen_pair(unsigned long long seen, int k)
{
    return (seen >> k & 1 ? 0x0000ffffu : 0) | (seen >> k & 2 ? 0xffff0000u : 0);
}

// c += a b for the rows of b from `at_b` whose bit in `seen` is set; a row of b is as wide as c, of which `width` columns take part.
constexpr unsigned long long ALL_SEEN = ~0ull;

template <int depth, int groups, int tiles, class Left>
METHOD void multiply_columns(float (&c)[groups][tiles][4], const Left& a, const Tile<Element>& b, int at_b, int ring, int at_column, int width,
                             unsigned long long seen = ALL_SEEN)
{
    if constexpr (NARROW) {
#pragma unroll
        for (int k = 0; k < depth; k += 16) {
            unsigned left[groups][4];
#pragma unroll
            for (int g = 0; g < groups; g++) a(left[g], k, g);
            const Tile<Element> rows = b.from(wrapped(at_b + k + lane() % 16, ring), at_column + lane() / 16 * 8);
            const bool all = __builtin_constant_p(seen) && seen == ALL_SEEN;
            const unsigned upper = all ? ~0u : seen_pair(seen, (k + lane() % 4 * 2) % 64);
            const unsigned lower = all ? ~0u : seen_pair(seen, (k + lane() % 4 * 2 + 8) % 64);
#pragma unroll
            for (int n = 0; n < 8 * tiles; n += 16) {
                if (at_column + n >= width) continue;
                unsigned r[4];
                load_matrices<true>(r, rows, 0, n);
                const unsigned right[2][2] = {{r[0] & upper, r[1] & lower}, {r[2] & upper, r[3] & lower}};
#pragma unroll
                for (int g = 0; g < groups; g++) multiply<Element, 2>(&c[g][n / 8], left[g], right);
            }
        }
    } else {
        for (int k = 0; k < depth; k++) {
            float left[2];
            a(left, k, 0);
            const bool is_seen = seen >> k % 64 & 1;
#pragma unroll
            for (int j = 0; j < tiles; j++) {
                if (at_column + 8 * j >= width) continue;
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float x = is_seen ? widen(b.get(wrapped(at_b + k, ring), at_column + 8 * j + column_of(e))) : 0;
                    c[0][j][e] += left[0] * x, c[0][j][2 + e] += left[1] * x;
                }
            }
        }
    }
}

// c += p b for scores p and the STEP rows of b from `at_b`. float32 goes through the warp's strip, from column 16 on; half types need none.
template <int groups>
METHOD void multiply_scores(float (&c)[groups][WIDTH / 8][4], float (&p)[groups][TILES][4], const Tile<float>& strip, const Tile<Element>& b,
                            int at_b, int width, unsigned long long seen = ALL_SEEN)
{
    if constexpr (NARROW) {
        multiply_columns<STEP>(c, FromScores<groups>{p}, b, at_b, NO_RING, 0, width, seen);
    } else {
        const int at = ROWS * warp();
        each(p[0], [&](float& x, int row, int column) { strip.put(at + row, ROWS + column, x); });
        sync_warp();
        multiply_columns<STEP>(c, FromStrip<false>{strip, at, ROWS}, b, at_b, NO_RING, 0, width, seen);
        sync_warp();
    }
}

DEVICE void multiply_scores(float (&c)[WIDTH / 8][4], float (&p)[TILES][4], const Tile<float>& strip, const Tile<Element>& b, int at_b,
                            int width, unsigned long long seen = ALL_SEEN)
{
    multiply_scores(alone(c), alone(p), strip, b, at_b, width, seen);
}

// Sum over the four lanes that share a row.
DEVICE float over_row(float x)
{
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}
