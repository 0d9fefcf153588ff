// The primitives on a GPU: intrinsics and inline PTX, for sm_80 and later. No header of the CUDA toolkit is needed.
#pragma once

#define DEVICE static __device__ __forceinline__
#define METHOD __device__ __forceinline__
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ Params p)

struct half { unsigned short bits; };
struct bfloat16 { unsigned short bits; };
using byte = unsigned char;
using int64 = long long;

DEVICE float widen(float x) { return x; }
DEVICE float widen(half x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
DEVICE float widen(bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }

template <class T> METHOD T narrow(float x);
template <> METHOD float narrow<float>(float x) { return x; }
template <> METHOD half narrow<half>(float x) { half y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
template <> METHOD bfloat16 narrow<bfloat16>(float x)
{
    unsigned y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(y) : "f"(x));
    return {(unsigned short)y};
}

// Two numbers rounded, in one register, the first in the lower half; float32 never goes through tensor cores.
template <class T> METHOD unsigned rounded_pair(float first, float second);
template <> METHOD unsigned rounded_pair<float>(float, float) { return 0; }
template <> METHOD unsigned rounded_pair<half>(float first, float second)
{
    unsigned y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    return y;
}
template <> METHOD unsigned rounded_pair<bfloat16>(float first, float second)
{
    unsigned y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    return y;
}

DEVICE int thread_index() { return threadIdx.x; }

// Of a grid of heads and blocks of rows, those of a block of threads. What runs side by side takes the rows of few heads, whose
// keys and values stay in the cache; of heads first, each wave would read all of them again.
DEVICE unsigned block_in_turn() { return blockIdx.y * gridDim.x + blockIdx.x; }
DEVICE int block_head() { return block_in_turn() / gridDim.y; }
DEVICE int block_rows() { return block_in_turn() % gridDim.y; }
DEVICE int last_block_rows() { return gridDim.y - 1 - block_rows(); }  // the last first: under a causal mask they take longest

DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE unsigned warp_or(unsigned x) { return __reduce_or_sync(0xffffffffu, x); }
DEVICE float natural_logarithm(float x) { return logf(x); }
DEVICE float reciprocal(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float larger(float x, float y) { return fmaxf(x, y); }
DEVICE float smaller(float x, float y) { return fminf(x, y); }
DEVICE float infinity() { return __int_as_float(0x7f800000); }

// 2^x; where its result is stored in 16 bits, the fast one, with zero for what is subnormal in float32.
template <class T> METHOD float power_of_two(float x)
{
    if (sizeof(T) == 4) return exp2f(x);
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <class T> METHOD float exponential(float x) { return sizeof(T) == 2 ? power_of_two<T>(x * LOG2E) : expf(x); }

// A tensor of up to four axes as the launcher describes it; data is null where an optional one is absent.
struct Tensor {
    void* data;
    int64 size[4], stride[4];
    const char* name;
};

template <class T> struct alignas(16) Pack { T x[16 / sizeof(T)]; };

// x y + z for two elements in one register each, rounded once.
DEVICE unsigned fused(half, unsigned x, unsigned y, unsigned z)
{
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(z) : "r"(x), "r"(y));
    return z;
}

DEVICE unsigned fused(bfloat16, unsigned x, unsigned y, unsigned z)
{
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(z) : "r"(x), "r"(y));
    return z;
}

DEVICE unsigned ones(half) { return 0x3c003c00; }
DEVICE unsigned ones(bfloat16) { return 0x3f803f80; }

// The sums of the elements of two packs.
template <class T> METHOD Pack<T> sum(const Pack<T>& x, const Pack<T>& y)
{
    const uint4 a = __builtin_bit_cast(uint4, x), b = __builtin_bit_cast(uint4, y);
    const unsigned one = ones(T{});
    return __builtin_bit_cast(
        Pack<T>, uint4{fused(T{}, a.x, one, b.x), fused(T{}, a.y, one, b.y), fused(T{}, a.z, one, b.z), fused(T{}, a.w, one, b.w)});
}

template <> METHOD Pack<float> sum(const Pack<float>& x, const Pack<float>& y)
{
    return {x.x[0] + y.x[0], x.x[1] + y.x[1], x.x[2] + y.x[2], x.x[3] + y.x[3]};
}

// Whether no element is NaN or infinity: times 0 it is no number.
template <class T> METHOD bool all_finite(const Pack<T>& pack)
{
    const uint4 x = __builtin_bit_cast(uint4, pack);
    const unsigned zero = fused(T{}, x.x, 0, fused(T{}, x.y, 0, fused(T{}, x.z, 0, fused(T{}, x.w, 0, 0))));
    return (zero & 0x7fff7fff) == 0;
}

template <> METHOD bool all_finite(const Pack<float>& x) { return x.x[0] * 0 + x.x[1] * 0 + x.x[2] * 0 + x.x[3] * 0 == 0; }

// A matrix in global memory: a head of a tensor.
template <class T> struct Matrix {
    T* data;
    int64 stride_row, stride_column;

    METHOD T* at(int64 row, int64 column) const { return data + row * stride_row + column * stride_column; }
    METHOD T read(int64 row, int64 column) const { return *at(row, column); }
    METHOD void write(int64 row, int64 column, T x) const { *at(row, column) = x; }
    METHOD void add(int64 row, int64 column, float x) const { atomicAdd(at(row, column), x); }
    // What begins at a row and a column.
    METHOD Matrix from(int64 row, int64 column) const { return {at(row, column), stride_row, stride_column}; }
    // Whether a row can be read 16 bytes at a time.
    METHOD bool wide() const
    {
        constexpr int n = 16 / sizeof(T);
        return stride_column == 1 && stride_row % n == 0 && (unsigned long long)data % 16 == 0;
    }
    METHOD Pack<T> read_pack(int64 row, int64 column) const
    {
        return __builtin_bit_cast(Pack<T>, *reinterpret_cast<const uint4*>(at(row, column)));
    }
};

template <class T> METHOD Matrix<T> matrix(const Tensor& x, int64 b, int64 h)
{
    return {(T*)x.data + b * x.stride[0] + h * x.stride[1], x.stride[2], x.stride[3]};
}

// A matrix in shared memory, its rows `ld` elements apart. Places in it are unsigned, for what is known of one can then stand in the
// instruction that reads it.
template <class T> struct Tile {
    T* data;
    int ld;

    METHOD T* at(int row, int column) const { return data + (unsigned)(row * ld + column); }
    METHOD T get(int row, int column) const { return *at(row, column); }
    METHOD void put(int row, int column, T x) const { *at(row, column) = x; }
    METHOD Tile from(int row, int column) const { return {at(row, column), ld}; }
    METHOD Pack<T> get_pack(int row, int column) const
    {
        return __builtin_bit_cast(Pack<T>, *reinterpret_cast<const uint4*>(at(row, column)));
    }
    METHOD void put_pack(int row, int column, const Pack<T>& x) const
    {
        *reinterpret_cast<uint4*>(at(row, column)) = __builtin_bit_cast(uint4, x);
    }
};

// 16 bytes from a wide matrix into a tile, in the background: there when wait_for_copies() has returned, for others behind a barrier.
template <class T> METHOD void copy_pack(const Tile<T>& tile, int row, int column, const Matrix<T>& from, int64 i, int j)
{
    const unsigned to = (unsigned)__cvta_generic_to_shared(tile.at(row, column));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from.data + i * from.stride_row + j) : "memory");
}

// As copy_pack, for four bytes, of any matrix.
DEVICE void copy_number(const Tile<float>& tile, int row, int column, const Matrix<float>& from, int64 i, int64 j)
{
    const unsigned to = (unsigned)__cvta_generic_to_shared(tile.at(row, column));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(to), "l"(from.at(i, j)) : "memory");
}

DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

extern __shared__ __align__(16) unsigned char shared_memory[];

// Hands out the shared memory of a block, tile after tile.
struct Arena {
    int used = 0;

    template <class T> METHOD Tile<T> tile(const char*, int rows, int columns, int ld)
    {
        Tile<T> made{(T*)(shared_memory + used), ld};
        used += (rows * ld * (int)sizeof(T) + 15) / 16 * 16;
        return made;
    }
};

// Four 8 x 8 blocks of 16-bit elements: lane i names row i % 8 of block i / 8, and receives two neighbours of row lane / 4 of each
// (with `transposed`, of column lane / 4).
template <bool transposed, class T> METHOD void load_matrices(unsigned (&r)[4], const Tile<T>& tile, int row, int column)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(tile.data) + (unsigned)(row * tile.ld + column) * (unsigned)sizeof(T);
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

DEVICE void mma(half, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEVICE void mma(bfloat16, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c += a b for a 16 x 16 a and `count` neighbouring 16 x 8 b.
template <class T, int count> METHOD void multiply(float (*c)[4], const unsigned (&a)[4], const unsigned (&b)[count][2])
{
#pragma unroll
    for (int j = 0; j < count; j++) mma(T{}, c[j], a, b[j]);
}
