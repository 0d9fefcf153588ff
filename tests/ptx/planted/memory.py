"""Shared, local and global memory: what nobody wrote, and what another warp still uses."""

import numpy as np

from tests.ptx.planted.table import Bug, Kernel

__all__ = ["MEMORY"]

RANDOM = np.random.default_rng(5)


def floats(count: int) -> np.ndarray:
    return RANDOM.standard_normal(count).astype(np.float32)


def is_maximum(given: list[np.ndarray]) -> None:
    assert (given[1] == given[0].reshape(4, -1).max(1)).all()


MAXIMUM = Kernel(
    "a maximum by warps",
    r"""
extern "C" __global__ void k(const float *x, float *y) {
  __shared__ float most[32];
  float m = -1e30f;
  for (int i = threadIdx.x; i < 300; i += blockDim.x) m = fmaxf(m, x[blockIdx.x * 300 + i]);
  for (int d = 16; d > 0; d /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, d));
  if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = m;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < blockDim.x / 32; w++) m = fmaxf(m, most[w]);
    y[blockIdx.x] = m;
  }
}
""",
    4,
    128,
    lambda: [floats(1200), np.zeros(4, np.float32)],
    is_maximum,
    (
        Bug("one warp too many", "w < blockDim.x / 32", "w <= blockDim.x / 32", "unwritten",
            "most[w]"),
        Bug("one row too many", "i < 300", "i < 301", "out of bounds", "x[blockIdx.x * 300 + i]"),
        Bug("only half of the warps write", "if (threadIdx.x % 32 == 0)",
            "if (threadIdx.x % 64 == 0)", "unwritten", "most[w]"),
        Bug("no barrier", "  __syncthreads();\n", "", "race", "most[w]", "most[threadIdx.x / 32]"),
        Bug("a barrier in a branch", "  __syncthreads();\n  if (threadIdx.x == 0) {",
            "  if (threadIdx.x == 0) {\n  __syncthreads();", "partial warp", "__syncthreads"),
        Bug("a shuffle in a branch", "for (int d = 16; d > 0; d /= 2) m",
            "if (threadIdx.x % 32 < 20) for (int d = 16; d > 0; d /= 2) m", "partial warp",
            "__shfl_xor"),
    ),
)  # fmt: skip

HISTOGRAM = Kernel(
    "a histogram",
    r"""
extern "C" __global__ void k(const int *x, int *bins) {
  __shared__ int own[16];
  if (threadIdx.x < 16) own[threadIdx.x] = 0;
  __syncthreads();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&own[x[i] & 15], 1);
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}
""",
    4,
    64,
    lambda: [np.arange(256, dtype=np.int32) ** 2 % 23, np.zeros(16, np.int32)],
    lambda given: np.testing.assert_array_equal(given[1], np.bincount(given[0] & 15, minlength=16)),
    (
        Bug("not set to zero", "if (threadIdx.x < 16) own[threadIdx.x] = 0;", ";", "unwritten",
            "atomicAdd(&own"),
        Bug("half of it", "if (threadIdx.x < 16) own", "if (threadIdx.x < 8) own", "unwritten",
            "own"),
        Bug("set to zero too late", "own[threadIdx.x] = 0;\n  __syncthreads();",
            "own[threadIdx.x] = 0;", "race"),
        Bug("read too early", "1);\n  __syncthreads();", "1);", "race"),
        Bug("no atomic in shared memory", "atomicAdd(&own[x[i] & 15], 1);", "own[x[i] & 15] += 1;",
            "race", "+= 1"),
        Bug("no atomic between blocks", "atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);",
            "bins[threadIdx.x] += own[threadIdx.x];", "race", "bins[threadIdx.x] +="),
        Bug("bins beyond the last", "own[x[i] & 15]", "own[x[i]]", "out of bounds", "own[x[i]]"),
    ),
)  # fmt: skip

LOCAL = Kernel(
    "a small table of each thread",
    r"""
extern "C" __global__ void k(const int *order, int *y) {
  int own[8];
  for (int i = 0; i < 8; i++) own[order[i]] = i;
  y[threadIdx.x] = own[order[threadIdx.x % 8]];
}
""",
    1,
    32,
    lambda: [np.array([3, 1, 4, 0, 5, 2, 7, 6], np.int32), np.zeros(32, np.int32)],
    lambda given: np.testing.assert_array_equal(given[1], np.arange(32) % 8),
    (
        Bug("one is left out", "i < 8; i++", "i < 7; i++", "unwritten", "y[threadIdx.x]"),
        Bug("one too many", "own[order[i]] = i", "own[order[i] + 1] = i", "out of bounds"),
    ),
)  # fmt: skip

ROUND = Kernel(
    "each warp passes its sum on through global memory",
    r"""
extern "C" __global__ void k(int *x, int *y) {
  x[threadIdx.x] = threadIdx.x * threadIdx.x;
  __syncthreads();
  y[threadIdx.x] = x[(threadIdx.x + 40) % 128];
  __syncthreads();
  x[threadIdx.x] = y[127 - threadIdx.x];
}
""",
    1,
    128,
    lambda: [np.zeros(128, np.int32), np.zeros(128, np.int32)],
    lambda given: np.testing.assert_array_equal(
        given[0], np.roll(np.arange(128) ** 2, -40)[::-1]
    ),
    (
        Bug("no barrier before it is read", "threadIdx.x;\n  __syncthreads();", "threadIdx.x;",
            "race", "% 128]", "x[threadIdx.x] = threadIdx"),
        Bug("no barrier before it is written again", "% 128];\n  __syncthreads();", "% 128];",
            "race"),
    ),
)  # fmt: skip

MEMORY = (MAXIMUM, HISTOGRAM, LOCAL, ROUND)
