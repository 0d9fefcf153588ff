"""Locks, flags and counters between blocks."""

from typing import Any

import numpy as np

from tests.ptx.planted.table import Bug, Kernel

__all__ = ["LOCKS"]


def zeros(*sizes: int) -> list[Any]:
    return [np.zeros(size, np.int32) for size in sizes]


def total(arguments: list[Any]) -> None:
    assert arguments[-1][0] == 64 * 65 // 2


SPIN = Kernel(
    "a spin lock",
    r"""
extern "C" __global__ void k(int *lock, int *sum) {
  if (threadIdx.x == 0) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    __threadfence();
    sum[0] = sum[0] + blockIdx.x + 1;
    __threadfence();
    atomicExch(lock, 0);
  }
}
""",
    64,
    64,
    lambda: zeros(1, 1),
    total,
    (
        Bug("no lock", "while (atomicCAS(lock, 0, 1) != 0) {}", ";", "race", "sum[0] ="),
        Bug("no fence before it opens", "    __threadfence();\n    atomicExch", "    atomicExch",
            "race", "sum[0] =", "sum[0] ="),
        Bug("a fence for the block alone", "__threadfence();\n    atomicExch",
            "__threadfence_block();\n    atomicExch", "race", "sum[0] ="),
        Bug("opened too early", "    sum[0] = sum[0] + blockIdx.x + 1;\n    __threadfence();\n"
            "    atomicExch(lock, 0);",
            "    atomicExch(lock, 0);\n    sum[0] = sum[0] + blockIdx.x + 1;", "race", "sum[0] ="),
        Bug("never opened", "atomicExch(lock, 0);", ";", "deadlock", "atomicCAS", "atomicCAS"),
        Bug("opened with another value", "atomicExch(lock, 0);", "atomicExch(lock, 2);",
            "deadlock", "atomicCAS", "atomicExch"),
    ),
)  # fmt: skip

TWO = Kernel(
    "two locks taken in one order",
    r"""
__device__ void take(int *lock) { while (atomicCAS(lock, 0, 1) != 0) {} __threadfence(); }
__device__ void give(int *lock) { __threadfence(); atomicExch(lock, 0); }
extern "C" __global__ void k(int *locks, volatile int *there, int *sum) {
  int me = blockIdx.x, first = 0, second = 1 - first;
  if (threadIdx.x == 0) {
    there[me] = 1;
    take(locks + first);
    there[me] = 2;
    for (int i = 0; i < 1000 && there[1 - me] < 2; i++) {}
    take(locks + second);
    sum[0] += 1040;
    give(locks + second);
    give(locks + first);
  }
}
""",
    2,
    32,
    lambda: zeros(2, 2, 1),
    total,
    (
        Bug("in two orders", "first = 0,", "first = me,", "deadlock", "take(", "take("),
    ),
)  # fmt: skip

CIRCLE = Kernel(
    "blocks that hand a number on",
    r"""
extern "C" __global__ void k(volatile int *flags, int *sum) {
  if (threadIdx.x == 0) {
    int me = blockIdx.x;
    if (me > 0) { while (flags[me - 1] == 0) {} __threadfence(); }
    sum[0] += me + 1;
    __threadfence();
    flags[me] = 1;
  }
}
""",
    64,
    32,
    lambda: zeros(64, 1),
    total,
    (
        Bug("the first waits for the last", "if (me > 0) { while (flags[me - 1] == 0) {}",
            "{ while (flags[(me + 63) % 64] == 0) {}", "deadlock", "flags[(me + 63)"),
        Bug("one is left out", "flags[me] = 1;", "if (me != 40) flags[me] = 1;", "deadlock",
            "flags[me - 1]"),
        Bug("no fence behind the number", "    __threadfence();\n    flags", "    flags", "race",
            "sum[0] +="),
    ),
)  # fmt: skip

LAST = Kernel(
    "the last block adds up",
    r"""
extern "C" __global__ void k(int *parts, unsigned *count, int *sum) {
  __shared__ bool last;
  __shared__ int all[64];
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = blockIdx.x + 1;
    __threadfence();
    last = atomicInc(count, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (last) {
    all[threadIdx.x] = parts[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) { for (int i = 0; i < 64; i++) sum[0] += all[i]; *count = 0; }
  }
}
""",
    64,
    64,
    lambda: [np.zeros(64, np.int32), np.zeros(1, np.uint32), np.zeros(1, np.int32)],
    total,
    (
        Bug("no fence", "    __threadfence();\n", "", "race", "= parts[threadIdx.x]",
            "parts[block"),
        Bug("each block resets the count", "__syncthreads();\n  if (last) {",
            "__syncthreads();\n  if (threadIdx.x + blockIdx.x == 3) *count = 0;\n  if (last) {",
            "race"),
        Bug("no counter", "atomicInc(count, gridDim.x) == gridDim.x - 1", "blockIdx.x == 63",
            "race", "= parts[threadIdx.x]"),
        Bug("counted before it is written",
            "    parts[blockIdx.x] = blockIdx.x + 1;\n    __threadfence();\n"
            "    last = atomicInc(count, gridDim.x) == gridDim.x - 1;",
            "    last = atomicInc(count, gridDim.x) == gridDim.x - 1;\n"
            "    parts[blockIdx.x] = blockIdx.x + 1;\n    __threadfence();",
            "race"),
        Bug("no barrier before the shared sums", "parts[threadIdx.x];\n    __syncthreads();",
            "parts[threadIdx.x];", "race"),
        Bug("the flag is read too early", "  __syncthreads();\n  if (last)", "  if (last)",
            "unwritten", "if (last)"),
    ),
)  # fmt: skip

GRID = Kernel(
    "a barrier of the grid",
    r"""
__device__ void all_blocks(volatile unsigned *count, unsigned turn) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd((unsigned *)count, 1u);
    while (*count < turn * gridDim.x) {}
    __threadfence();
  }
  __syncthreads();
}
extern "C" __global__ void k(int *x, int *y, unsigned *count, int *sum) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  x[i] = i;
  all_blocks(count, 1);
  y[i] = x[(i + 100) % n] + x[0];
  all_blocks(count, 2);
  x[i] = y[n - 1 - i];
  all_blocks(count, 3);
  if (i == 0) for (int j = 0; j < n; j++) sum[0] += x[j];
}
""",
    8,
    64,
    lambda: [*zeros(512, 512), np.zeros(1, np.uint32), np.zeros(1, np.int32)],
    lambda given: np.testing.assert_equal(given[-1][0], 511 * 256),
    (
        Bug("the first barrier of the grid is left out", "all_blocks(count, 1);", ";", "race"),
        Bug("one of the block in its place", "all_blocks(count, 1);", "__syncthreads();", "race"),
        Bug("the second is left out, the third counts as second",
            "  all_blocks(count, 2);\n  x[i] = y[n - 1 - i];\n  all_blocks(count, 3);",
            "  x[i] = y[n - 1 - i];\n  all_blocks(count, 2);", "race"),
        Bug("no fence in it", "    __threadfence();\n    atomicAdd", "    atomicAdd", "race"),
        Bug("no barrier in front",
            "  __syncthreads();\n  if (threadIdx.x == 0) {\n    __threadfence",
            "  if (threadIdx.x == 0) {\n    __threadfence", "race"),
        Bug("no barrier behind", "    __threadfence();\n  }\n  __syncthreads();",
            "    __threadfence();\n  }", "race"),
        Bug("waits for one more", "turn * gridDim.x", "turn * gridDim.x + 1", "deadlock",
            "while (*count"),
    ),
)  # fmt: skip

LOCKS = (SPIN, TWO, CIRCLE, LAST, GRID)
