// The primitives on a CPU: a block runs as fibers, in an order drawn from a seed, and whatever the GPU would let pass is an error.
//
// Global memory: every index is held to the sizes of its axis. Shared memory: every element remembers who wrote and who read it
// last, and in which phase (between which barriers) of the block and of the warp. Reading what nobody wrote, reading what another
// thread wrote or writing what another one read or wrote without a barrier between is an error by itself, in every order.
// A barrier or a warp's collective that some thread never reaches is an error too. The first error ends the launch.
#pragma once

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#if !defined(__x86_64__) || defined(FIBERS_BY_UCONTEXT)
#include <ucontext.h>
#define UCONTEXT
#endif

#define DEVICE static inline
#define METHOD inline
#define KERNEL(name)                                                                                  \
    static void name(const Params& p);                                                                \
    extern "C" __attribute__((visibility("default"))) int launch_##name(const Params* p, host::Launch* launch)                               \
    {                                                                                                 \
        if (launch->params_bytes != sizeof(Params)) return host::refuse(#name, sizeof(Params), launch); \
        return host::run(#name, [](const void* given) { name(*(const Params*)given); }, p, launch);   \
    }                                                                                                 \
    static void name(const Params& p)

using byte = unsigned char;
using int64 = long long;

namespace host {

constexpr int WARP = 32, MOST = 256, STACK = 1 << 17;

struct Launch {
    int64 grid_x, grid_y, threads, shared_bytes, params_bytes, used_bytes;
    uint64_t seed;
    char* error;  // room for 512 bytes
};

struct Fiber {
#ifdef UCONTEXT
    ucontext_t context;
#else
    void* stack_pointer;
#endif
};

enum State { READY, AT_BLOCK_BARRIER, IN_WARP, ENDED };
const char* const STATES[] = {"runs", "waits at a barrier of the block", "waits for its warp", "has ended"};

struct Warp {
    const char* what;  // the collective that its lanes meet in
    int arrived;
    uint32_t phase;
    void* given[WARP];
};

// Of one element of shared memory. A reader of -1 - w stands for several threads of warp w, MANY for several warps.
struct Shadow {
    uint32_t write_phase, write_warp_phase, read_phase, read_warp_phase;
    int16_t writer, reader;
};
constexpr int16_t MANY = -1000;

struct Machine {
    Fiber fibers[MOST], scheduler;
    State state[MOST];
    Warp warps[MOST / WARP];
    int ready[MOST], n_ready, arrived, n_ended, current, threads, block_x, block_y;
    uint32_t phase, first_phase;  // barriers passed: in all blocks, and when this block began
    uint64_t random;
    bool failed;
    size_t shared_bytes, used;  // what a block may have of shared memory, and has taken at most
    const char* kernel;
    char* error;
    void (*body)(const void*);
    const void* params;
    std::vector<char> stacks, shared;
    std::vector<Shadow> shadow;
};
static Machine now;

#ifdef UCONTEXT
static void jump(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }
#else
extern "C" void fiber_jump_from_to(void** from, void* to);
asm(R"(
.text
.local fiber_jump_from_to
.type fiber_jump_from_to, @function
fiber_jump_from_to:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
static void jump(Fiber& from, Fiber& to) { fiber_jump_from_to(&from.stack_pointer, to.stack_pointer); }
#endif

[[noreturn]] __attribute__((format(printf, 1, 2))) static void fail(const char* format, ...)
{
    int n = snprintf(now.error, 512, "%s, block (%d, %d), thread %d: ", now.kernel, now.block_x, now.block_y, now.current);
    va_list rest;
    va_start(rest, format);
    vsnprintf(now.error + n, 512 - n, format, rest);
    va_end(rest);
    now.failed = true;
    jump(now.fibers[now.current], now.scheduler);
    __builtin_unreachable();
}

static void wake(int thread)
{
    now.state[thread] = READY;
    now.ready[now.n_ready++] = thread;
}

// A whole number below n.
static int draw(int n)
{
    now.random ^= now.random << 13, now.random ^= now.random >> 7, now.random ^= now.random << 17;
    return (int)((now.random >> 32) * (uint64_t)n >> 32);
}

// Whom the others wait for, where nobody can run any more.
[[noreturn]] static void stuck()
{
    int waits = 0, absent = 0;
    while (now.state[waits] != AT_BLOCK_BARRIER && now.state[waits] != IN_WARP) waits++;
    const bool block = now.state[waits] == AT_BLOCK_BARRIER;
    if (!block) absent = waits / WARP * WARP;
    while (now.state[absent] == now.state[waits]) absent++;
    now.current = waits;
    const char* what = block ? "a barrier of the block" : now.warps[waits / WARP].what;
    fail("waits in %s for thread %d, which %s", what, absent, STATES[now.state[absent]]);
}

// Let another thread run; back here when somebody has woken this one.
static void wait()
{
    const int self = now.current;
    if (now.n_ready == 0) {
        if (now.n_ended == now.threads) jump(now.fibers[self], now.scheduler);
        stuck();
    }
    const int chosen = draw(now.n_ready), next = now.ready[chosen];
    now.ready[chosen] = now.ready[--now.n_ready];
    now.current = next;
    if (next != self) jump(now.fibers[self], now.fibers[next]);
}

static void fiber()
{
    now.body(now.params);
    now.state[now.current] = ENDED;
    now.n_ended++;
    wait();
    __builtin_unreachable();
}

static void make(int thread)
{
    char* top = now.stacks.data() + (size_t)(thread + 1) * STACK;
#ifdef UCONTEXT
    ucontext_t& context = now.fibers[thread].context;
    getcontext(&context);
    context.uc_stack.ss_sp = top - STACK;
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, fiber, 0);
#else
    void** stack = (void**)((uintptr_t)top / 16 * 16) - 2;
    *stack = (void*)fiber;  // where the first jump returns to, with the stack pointer as after a call
    now.fibers[thread].stack_pointer = stack - 6;
#endif
}

static void run_block(int x, int y)
{
    now.block_x = x, now.block_y = y;
    now.arrived = now.n_ended = now.n_ready = 0;
    now.first_phase = ++now.phase;
    for (int thread = 0; thread < now.threads; thread++) make(thread), wake(thread);
    for (int w = 0; w < now.threads / WARP; w++) now.warps[w].arrived = 0;
    const int chosen = draw(now.n_ready);
    now.current = now.ready[chosen], now.ready[chosen] = now.ready[--now.n_ready];
    jump(now.scheduler, now.fibers[now.current]);
}

static int refuse(const char* kernel, size_t wanted, const Launch* launch)
{
    snprintf(launch->error, 512, "%s: its parameters have %zu bytes, %lld were given", kernel, wanted, launch->params_bytes);
    return 1;
}

static int run(const char* kernel, void (*body)(const void*), const void* params, Launch* launch)
{
    now.kernel = kernel, now.body = body, now.params = params, now.error = launch->error;
    now.threads = launch->threads, now.random = launch->seed | 1, now.failed = false, now.used = 0;
    now.shared_bytes = launch->shared_bytes;
    if (now.stacks.size() < (size_t)now.threads * STACK) now.stacks.resize((size_t)now.threads * STACK);
    if (now.shared.size() < now.shared_bytes + 16) now.shared.resize(now.shared_bytes + 16);
    if (now.shadow.size() < now.shared_bytes / 2 + 8) now.shadow.resize(now.shared_bytes / 2 + 8);
    for (int64 y = 0; y < launch->grid_y; y++)
        for (int64 x = 0; x < launch->grid_x && !now.failed; x++) run_block(x, y);
    launch->used_bytes = now.used;
    return now.failed;
}

static Warp& my_warp() { return now.warps[now.current / WARP]; }

// All lanes of a warp meet; the last performs for all.
template <class F> static void together(const char* what, void* given, F perform)
{
    Warp& warp = my_warp();
    const int first = now.current / WARP * WARP, self = now.current;
    if (warp.arrived && warp.what != what) fail("is in %s while other lanes of its warp are in %s", what, warp.what);
    warp.what = what;
    warp.given[self - first] = given;
    if (++warp.arrived < WARP) {
        now.state[self] = IN_WARP;
        return wait();
    }
    warp.arrived = 0;
    perform(warp);
    for (int i = first; i < first + WARP; i++)
        if (i != self) wake(i);
}

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

// Numbers

struct half { unsigned short bits; };
struct bfloat16 { unsigned short bits; };

template <class To, class From> static inline To bits(From x)
{
    static_assert(sizeof(To) == sizeof(From));
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}

DEVICE float widen(float x) { return x; }
DEVICE float widen(bfloat16 x) { return bits<float>((uint32_t)x.bits << 16); }
DEVICE float widen(half x)
{
    const uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
    // moved to the exponent of float, whose bias is 112 larger: exact for subnormals too; infinity and NaN have the largest exponent
    const float y = bits<float>(rest << 13) * 0x1p112f;
    return bits<float>(sign | (rest >= 0x7c00 ? rest << 13 | 0x7f800000 : bits<uint32_t>(y)));
}

template <class T> inline T narrow(float x);
template <> inline float narrow<float>(float x) { return x; }
template <> inline bfloat16 narrow<bfloat16>(float x)
{
    const uint32_t y = bits<uint32_t>(x);
    if (x != x) return {(unsigned short)(y >> 16 | 0x40)};
    return {(unsigned short)((y + 0x7fff + (y >> 16 & 1)) >> 16)};
}
template <> inline half narrow<half>(float x)
{
    const uint32_t y = bits<uint32_t>(x), sign = y >> 16 & 0x8000, rest = y & 0x7fffffff;
    if (rest > 0x7f800000) return {(unsigned short)(sign | 0x7e00)};
    if (rest >= 0x477ff000) return {(unsigned short)(sign | 0x7c00)};
    if (rest < 0x38800000) {  // subnormal: the addition rounds at the last bit of the format
        return {(unsigned short)(sign | (bits<uint32_t>(bits<float>(rest) + 0.5f) - bits<uint32_t>(0.5f)))};
    }
    return {(unsigned short)(sign | ((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13))};
}

template <class T> inline unsigned pack(T first, T second) { return first.bits | (unsigned)second.bits << 16; }
template <class T> static inline float unpacked(unsigned pair, int which) { return widen(T{(unsigned short)(pair >> 16 * which)}); }

DEVICE float natural_logarithm(float x) { return logf(x); }
DEVICE float reciprocal(float x) { return 1 / x; }
DEVICE float larger(float x, float y) { return fmaxf(x, y); }
DEVICE float smaller(float x, float y) { return fminf(x, y); }
DEVICE float infinity() { return __builtin_huge_valf(); }
template <class T> inline float exponential(float x) { return expf(x); }

// Threads

DEVICE int thread_index() { return host::now.current; }
DEVICE int block_x() { return host::now.block_x; }
DEVICE int block_y() { return host::now.block_y; }

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

// Memory

struct Tensor {
    void* data;
    int64 size[4], stride[4];
    const char* name;
};

template <class T> struct Pack { T x[16 / sizeof(T)]; };

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
    void check_aligned(int row, int column) const
    {
        if ((row * ld + column) % (16 / sizeof(T))) host::fail("access to 16 bytes of %s[%d, %d], not aligned", name, row, column);
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
