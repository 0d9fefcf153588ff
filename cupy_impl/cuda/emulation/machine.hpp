// A block as fibers: who runs next is drawn from a seed; who waits for somebody that never comes, and whatever else fails, ends the launch.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <vector>

#if !defined(__x86_64__) || defined(FIBERS_BY_UCONTEXT)
#include <ucontext.h>
#define UCONTEXT
#endif

// A function to run over a grid, and the one that the launcher calls.
#define KERNEL(name)                                                                                               \
    static void name(const Params& p);                                                                             \
    extern "C" __attribute__((visibility("default"))) int launch_##name(const Params* p, host::Launch* launch)     \
    {                                                                                                              \
        if (launch->params_bytes != sizeof(Params)) return host::refuse(#name, sizeof(Params), launch);            \
        return host::run(#name, [](const void* given) { name(*(const Params*)given); }, p, launch);                \
    }                                                                                                              \
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

}  // namespace host
