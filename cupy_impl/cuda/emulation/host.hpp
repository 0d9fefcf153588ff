// The primitives on a CPU: a block runs as fibers, in an order drawn from a seed, and whatever the GPU would let pass is an error.
//
// Global memory: every index is held to the sizes of its axis. Shared memory: every element remembers who wrote and who read it
// last, and in which phase (between which barriers) of the block and of the warp. Reading what nobody wrote, reading what another
// thread wrote or writing what another one read or wrote without a barrier between is an error by itself, in every order.
// A barrier or a warp's collective that some thread never reaches is an error too. The first error ends the launch.
#pragma once

#include "numbers.hpp"

#include "machine.hpp"

#include "memory.hpp"

// Threads

DEVICE int thread_index() { return host::now.current; }
DEVICE int block_head() { return host::now.block_x; }
DEVICE int block_rows() { return host::now.block_y; }
DEVICE int last_block_rows() { return host::now.block_y; }

DEVICE void sync_warp()
{
    host::together("a barrier of the warp", nullptr, [](host::Warp& warp) { warp.phase++; });
}

DEVICE void sync_block()
{
    using namespace host;
    const int self = now.current;
    if (++now.arrived < now.threads) {
        now.state[self] = AT_BLOCK_BARRIER;
        return wait();
    }
    now.arrived = 0;
    now.phase++;
    for (int i = 0; i < now.threads; i++)
        if (i != self) wake(i);
}

DEVICE float shuffle_xor(float x, int mask)
{
    struct { float x; int mask; } given{x, mask};
    host::together("a shuffle", &given, [](host::Warp& warp) {
        float y[host::WARP];
        for (int i = 0; i < host::WARP; i++) y[i] = *(float*)warp.given[i ^ ((decltype(given)*)warp.given[i])->mask];
        for (int i = 0; i < host::WARP; i++) *(float*)warp.given[i] = y[i];
    });
    return given.x;
}

DEVICE unsigned warp_or(unsigned x)
{
    host::together("a reduction", &x, [](host::Warp& warp) {
        unsigned all = 0;
        for (void* given : warp.given) all |= *(unsigned*)given;
        for (void* given : warp.given) *(unsigned*)given = all;
    });
    return x;
}

// A copy is made at once: a reader behind no barrier is told all the same.
template <class T> inline void copy_pack(const Tile<T>& tile, int row, int column, const Matrix<T>& from, int64 i, int j)
{
    tile.put_pack(row, column, from.read_pack(i, j));
}

DEVICE void copy_number(const Tile<float>& tile, int row, int column, const Matrix<float>& from, int64 i, int64 j)
{
    tile.put(row, column, from.read(i, j));
}

DEVICE void wait_for_copies() {}

// Collectives of a warp over the fragments of mma.m16n8k16, as the PTX manual lays them out

template <bool transposed, class T> inline void load_matrices(unsigned (&r)[4], const Tile<T>& tile, int row, int column)
{
    struct { unsigned* r; T x[8]; } given{r, {}};
    tile.check_aligned(row, column);
    for (int i = 0; i < 8; i++) given.x[i] = tile.get(row, column + i);
    host::together(transposed ? "a transposed load of matrices" : "a load of matrices", &given, [](host::Warp& warp) {
        const auto row_of = [&](int matrix, int row) { return ((decltype(given)*)warp.given[8 * matrix + row])->x; };
        for (int i = 0; i < host::WARP; i++)
            for (int m = 0; m < 4; m++) {
                const int g = i / 4, t = 2 * (i % 4);
                ((decltype(given)*)warp.given[i])->r[m] =
                    transposed ? pack(row_of(m, t)[g], row_of(m, t + 1)[g]) : pack(row_of(m, g)[t], row_of(m, g)[t + 1]);
            }
    });
}

template <class T, int count> inline void multiply(float (*c)[4], const unsigned (&a)[4], const unsigned (&b)[count][2])
{
    struct { float (*c)[4]; const unsigned* a; const unsigned (*b)[2]; } given{c, a, b};
    host::together("mma", &given, [](host::Warp& warp) {
        const auto of = [&](int i) { return (decltype(given)*)warp.given[i]; };
        float A[16][16], B[16][8 * count];
        for (int i = 0; i < host::WARP; i++) {
            const int g = i / 4, t = 2 * (i % 4);
            for (int m = 0; m < 4; m++)
                for (int e = 0; e < 2; e++) A[g + 8 * (m % 2)][t + 8 * (m / 2) + e] = unpacked<T>(of(i)->a[m], e);
            for (int j = 0; j < count; j++)
                for (int m = 0; m < 2; m++)
                    for (int e = 0; e < 2; e++) B[t + 8 * m + e][8 * j + g] = unpacked<T>(of(i)->b[j][m], e);
        }
        for (int row = 0; row < 16; row++) {
            float sum[8 * count];
            for (int n = 0; n < 8 * count; n++) sum[n] = of(row % 8 * 4 + n % 8 / 2)->c[n / 8][row / 8 * 2 + n % 2];
            for (int k = 0; k < 16; k++)
                for (int n = 0; n < 8 * count; n++) sum[n] += A[row][k] * B[k][n];
            for (int n = 0; n < 8 * count; n++) of(row % 8 * 4 + n % 8 / 2)->c[n / 8][row / 8 * 2 + n % 2] = sum[n];
        }
    });
}
