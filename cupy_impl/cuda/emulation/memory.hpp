// Memory on a CPU: every index is held to the sizes of its axis, every access to shared memory to who wrote and read it last.
#pragma once

#include "machine.hpp"

namespace host {

[[gnu::noinline]] static void suspicious_read(const Shadow& s, const char* name, int row, int column)
{
    if (s.write_phase < now.first_phase) fail("read of %s[%d, %d], which nobody has written", name, row, column);
    if (s.writer == now.current) return;
    if (s.writer / WARP == now.current / WARP && s.write_warp_phase < my_warp().phase) return;
    fail("read of %s[%d, %d], written by thread %d with no barrier between", name, row, column, s.writer);
}

static inline void note_read(Shadow& s, const char* name, int row, int column)
{
    if (s.write_phase < now.first_phase || s.write_phase == now.phase) suspicious_read(s, name, row, column);
    if (s.read_phase == now.phase && s.reader == MANY) return;
    const int16_t self = now.current, warp = -1 - self / WARP;
    if (s.read_phase == now.phase && s.reader == warp && s.read_warp_phase == my_warp().phase) return;
    if (s.read_phase != now.phase)
        s.reader = self;
    else if (s.reader != self)
        s.reader = (s.reader >= 0 ? -1 - s.reader / WARP : s.reader) == warp ? warp : MANY;
    s.read_phase = now.phase;
    s.read_warp_phase = my_warp().phase;
}

static inline void note_write(Shadow& s, const char* name, int row, int column)
{
    const int self = now.current;
    const uint32_t phase = my_warp().phase;
    if (s.write_phase == now.phase && s.writer != self && (s.writer / WARP != self / WARP || s.write_warp_phase == phase))
        fail("write to %s[%d, %d], written by thread %d with no barrier between", name, row, column, s.writer);
    if (s.read_phase == now.phase && s.reader != self) {
        const int warp = s.reader >= 0 ? s.reader / WARP : -1 - s.reader;
        if (warp != self / WARP || s.read_warp_phase == phase)
            fail("write to %s[%d, %d], read by another thread with no barrier between", name, row, column);
    }
    s.write_phase = now.phase, s.write_warp_phase = phase, s.writer = self;
}

}  // namespace host

struct Tensor {
    void* data;
    int64 size[4], stride[4];
    const char* name;
};

template <class T> struct Pack { T x[16 / sizeof(T)]; };

template <class T> inline Pack<T> sum(const Pack<T>& x, const Pack<T>& y)
{
    Pack<T> z;
    for (size_t i = 0; i < 16 / sizeof(T); i++) z.x[i] = narrow<T>(widen(x.x[i]) + widen(y.x[i]));
    return z;
}

template <class T> inline bool all_finite(const Pack<T>& pack)
{
    for (T x : pack.x)
        if (widen(x) * 0 != 0) return false;
    return true;
}

template <class T> struct Matrix {
    T* data;
    int64 stride_row, stride_column, rows, columns;
    const char* name;

    T* at(int64 row, int64 column, const char* what) const
    {
        if (row < 0 || row >= rows || column < 0 || column >= columns)
            host::fail("%s %s[%lld, %lld], which has %lld x %lld elements", what, name, row, column, rows, columns);
        return data + row * stride_row + column * stride_column;
    }
    T read(int64 row, int64 column) const { return *at(row, column, "read of"); }
    void write(int64 row, int64 column, T x) const { *at(row, column, "write to") = x; }
    void add(int64 row, int64 column, float x) const { *at(row, column, "addition to") += x; }
    Matrix from(int64 row, int64 column) const
    {
        return {at(row, column, "beginning of"), stride_row, stride_column, rows - row, columns - column, name};
    }
    bool wide() const
    {
        constexpr int n = 16 / sizeof(T);
        return stride_column == 1 && stride_row % n == 0 && (uintptr_t)data % 16 == 0;
    }
    Pack<T> read_pack(int64 row, int64 column) const
    {
        constexpr int n = 16 / sizeof(T);
        if ((uintptr_t)at(row, column, "read of") % 16 || stride_column != 1) host::fail("read of 16 bytes of %s, not aligned", name);
        at(row, column + n - 1, "read of");
        Pack<T> x;
        memcpy(&x, at(row, column, "read of"), 16);
        return x;
    }
};

template <class T> inline Matrix<T> matrix(const Tensor& x, int64 b, int64 h)
{
    if (b < 0 || b >= x.size[0] || h < 0 || h >= x.size[1])
        host::fail("head [%lld, %lld] of %s, which has %lld x %lld heads", b, h, x.name, x.size[0], x.size[1]);
    return {(T*)x.data + b * x.stride[0] + h * x.stride[1], x.stride[2], x.stride[3], x.size[2], x.size[3], x.name};
}

template <class T> struct Tile {
    T* data;
    int ld;
    host::Shadow* shadow;
    int rows, columns;
    const char* name;

    void check(const char* what, int row, int column) const
    {
        if (row < 0 || row >= rows || column < 0 || column >= columns)
            host::fail("%s %s[%d, %d], which has %d x %d elements", what, name, row, column, rows, columns);
    }
    host::Shadow& shadow_of(int row, int column) const { return shadow[(row * ld + column) * (sizeof(T) / 2)]; }
    T get(int row, int column) const
    {
        check("read of", row, column);
        host::note_read(shadow_of(row, column), name, row, column);
        return data[row * ld + column];
    }
    void put(int row, int column, T x) const
    {
        check("write to", row, column);
        host::note_write(shadow_of(row, column), name, row, column);
        data[row * ld + column] = x;
    }
    Tile from(int row, int column) const
    {
        check("beginning of", row, column);
        return {data + row * ld + column, ld, &shadow_of(row, column), rows - row, columns - column, name};
    }
    void check_aligned(int row, int column) const
    {
        if ((uintptr_t)(data + row * ld + column) % 16) host::fail("access to 16 bytes of %s[%d, %d], not aligned", name, row, column);
    }
    Pack<T> get_pack(int row, int column) const
    {
        check_aligned(row, column);
        Pack<T> x;
        for (size_t i = 0; i < 16 / sizeof(T); i++) x.x[i] = get(row, column + i);
        return x;
    }
    void put_pack(int row, int column, const Pack<T>& x) const
    {
        check_aligned(row, column);
        for (size_t i = 0; i < 16 / sizeof(T); i++) put(row, column + i, x.x[i]);
    }
};

struct Arena {
    size_t used = 0;

    template <class T> Tile<T> tile(const char* name, int rows, int columns, int ld)
    {
        static_assert(sizeof(T) % 2 == 0, "shadows stand two bytes apart");
        char* base = (char*)(((uintptr_t)host::now.shared.data() + 15) / 16 * 16);
        Tile<T> made{(T*)(base + used), ld, host::now.shadow.data() + used / 2, rows, columns, name};
        used += (rows * ld * sizeof(T) + 15) / 16 * 16;
        if (used > host::now.used) host::now.used = used;
        if (used > host::now.shared_bytes) host::fail("%s does not fit into the block's shared memory", name);
        return made;
    }
};
