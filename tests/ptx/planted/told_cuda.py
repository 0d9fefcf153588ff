"""
Bugs in CUDA C++ that public histories and manuals tell of, planted in kernels written anew.

The list was written before any of them ran on the machine.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ptx.planted.table import Bug, Kernel

__all__ = ["TOLD_CUDA"]

RANDOM = np.random.default_rng(38)
MANUAL = "docs.nvidia.com/compute-sanitizer"
GUIDE = "docs.nvidia.com/cuda/cuda-c-programming-guide"


def whole(*shape: int) -> Any:
    """Whole numbers as float32: their sums are exact in any order."""
    return RANDOM.integers(-9, 9, shape).astype(np.float32)


def equals(place: int, wanted: Callable[[list[Any]], Any]) -> Callable[[list[Any]], None]:
    return lambda given: np.testing.assert_array_equal(given[place], wanted(given))


SUM = Kernel(
    "a sum as a tree",
    r"""
extern "C" __global__ void k(const float *x, float *y, int n) {
  __shared__ float s[128];
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  s[t] = i < n ? x[i] : 0;
  __syncthreads();
  for (int d = blockDim.x / 2; d > 0; d >>= 1) {
    if (t < d) s[t] += s[t + d];
    __syncthreads();
  }
  if (t == 0) y[blockIdx.x] = s[0];
}
""",
    3,
    128,
    lambda: [whole(300), np.zeros(3, np.float32), 300],
    equals(1, lambda given: np.pad(given[0], (0, 84)).reshape(3, 128).sum(1)),
    (
        Bug("no barrier behind the loads", "0;\n  __syncthreads();", "0;", "race",
            told="arrayfire/arrayfire#633"),
        Bug("no barrier in the loop", "[t + d];\n    __syncthreads();", "[t + d];", "race",
            told="svenssonjoel/Obsidian#4"),
        Bug("the barrier under a condition",
            "if (t < d) s[t] += s[t + d];\n    __syncthreads();",
            "if (t < d) { s[t] += s[t + d]; __syncthreads(); }", "deadlock",
            told="acts-project/acts#307"),
        Bug("no test of the index", "i < n ? x[i] : 0", "x[i]", "out of bounds", told=MANUAL),
        Bug("threads beyond the end leave first", "s[t] = i < n ? x[i] : 0;",
            "if (i >= n) return;\n  s[t] = x[i];", "partial warp",
            told="AccelerateHS/accelerate-cuda#5"),
        Bug("the first step is a whole block", "d = blockDim.x / 2", "d = blockDim.x",
            "out of bounds", told="kaldi-asr/kaldi#3036"),
    ),
)  # fmt: skip

WARP = Kernel(
    "the tail of a sum by one warp",
    r"""
extern "C" __global__ void k(const float *x, float *y) {
  __shared__ float s[64];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  if (t < 32) {
    for (int d = 32; d > 0; d >>= 1) {
      float v = s[t + (t < d ? d : 0)];
      __syncwarp();
      if (t < d) s[t] += v;
      __syncwarp();
    }
    if (t == 0) y[0] = s[0];
  }
}
""",
    1,
    64,
    lambda: [whole(64), np.zeros(1, np.float32)],
    equals(1, lambda given: given[0].sum()),
    (
        Bug("no __syncwarp behind the sum", "s[t] += v;\n      __syncwarp();", "s[t] += v;",
            "race", told="kokkos/kokkos#6630"),
        Bug("__syncwarp in place of the barrier", "s[t] = x[t];\n  __syncthreads();",
            "s[t] = x[t];\n  __syncwarp();", "race", told="tpruvot/ccminer#75"),
    ),
)  # fmt: skip

SOFTMAX = Kernel(
    "a row minus its maximum, over its sum",
    r"""
__device__ float all(float v, float *s, bool most) {
  for (int d = 16; d > 0; d /= 2) {
    float o = __shfl_xor_sync(~0u, v, d);
    v = most ? fmaxf(v, o) : v + o;
  }
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
  __syncthreads();
  v = s[0];
  for (int w = 1; w < blockDim.x / 32; w++) v = most ? fmaxf(v, s[w]) : v + s[w];
  return v;
}
extern "C" __global__ void k(const float *x, float *y, int n) {
  __shared__ float s[32];
  float m = -1e30f, sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, x[blockIdx.x * n + i]);
  m = all(m, s, true);
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i] - m;
  sum = all(sum, s, false);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
""",
    2,
    128,
    lambda: [whole(2, 200), np.zeros(2, np.float32), 200],
    equals(1, lambda given: (given[0] - given[0].max(1, keepdims=True)).sum(1)),
    (
        Bug("sums are written over a maximum that others read", "true);\n  __syncthreads();",
            "true);", "race", told="karpathy/llm.c, softmax_forward_kernel4"),
        Bug("read before it is there", "= v;\n  __syncthreads();", "= v;", "race",
            told="1bit-MONSTER/1bit-MONSTER#465"),
        Bug("thirty-two sums for four warps", "w < blockDim.x / 32", "w < 32", "unwritten",
            told="xlite-dev/LeetCUDA, softmax.cu"),
        Bug("a shuffle of those who have work", "m = all(m, s, true);",
            "if (threadIdx.x < 100) m = all(m, s, true);", "partial warp",
            told="developer.nvidia.com/blog/using-cuda-warp-level-primitives"),
    ),
)  # fmt: skip

TRANSPOSE = Kernel(
    "a transposition in tiles",
    r"""
extern "C" __global__ void k(const float *x, float *y, int rows, int columns) {
  __shared__ float tile[16][17];
  int c = blockIdx.x * 16 + threadIdx.x % 16, r = blockIdx.y * 16 + threadIdx.x / 16;
  if (r < rows && c < columns) tile[threadIdx.x / 16][threadIdx.x % 16] = x[r * columns + c];
  __syncthreads();
  c = blockIdx.y * 16 + threadIdx.x % 16, r = blockIdx.x * 16 + threadIdx.x / 16;
  if (r < columns && c < rows) y[r * rows + c] = tile[threadIdx.x % 16][threadIdx.x / 16];
}
""",
    (3, 2, 1),  # type: ignore[arg-type]
    256,
    lambda: [whole(20, 40), np.zeros((40, 20), np.float32), 20, 40],
    equals(1, lambda given: given[0].T),
    (
        Bug("no barrier", "  __syncthreads();\n", "", "race", told=GUIDE),
        Bug("threads at the edge leave before the barrier",
            "if (r < rows && c < columns) tile", "if (r >= rows || c >= columns) return;\n  tile",
            "partial warp", told="xlite-dev/LeetCUDA, mat_transpose.cu"),
        Bug("the barrier stands in the branch of the edge",
            "if (r < rows && c < columns) tile[threadIdx.x / 16][threadIdx.x % 16] = "
            "x[r * columns + c];\n  __syncthreads();",
            "if (r < rows && c < columns) {\n    tile[threadIdx.x / 16][threadIdx.x % 16] = "
            "x[r * columns + c];\n    __syncthreads();\n  }", "partial warp",
            told="xlite-dev/LeetCUDA, mat_transpose.cu"),
        Bug("the guards of the second side are those of the first", "r < columns && c < rows",
            "r < rows && c < columns", "unwritten", told=MANUAL),
        Bug("no guard of the second side", "if (r < columns && c < rows) y", "y",
            "unwritten", told=MANUAL),
        Bug("the stride of the other matrix", "y[r * rows + c]", "y[r * columns + c]",
            "out of bounds", told="triton-lang/triton#6242"),
    ),
)  # fmt: skip

PRODUCT = Kernel(
    "a product of matrices in tiles",
    r"""
extern "C" __global__ void k(const float *a, const float *b, float *c, int n) {
  __shared__ float p[16][16], q[16][16];
  int i = threadIdx.x / 16, j = threadIdx.x % 16;
  int row = blockIdx.y * 16 + i, column = blockIdx.x * 16 + j;
  float sum = 0;
  for (int k = 0; k < n; k += 16) {
    p[i][j] = row < n && k + j < n ? a[row * n + k + j] : 0;
    q[i][j] = column < n && k + i < n ? b[(k + i) * n + column] : 0;
    __syncthreads();
    for (int l = 0; l < 16; l++) sum += p[i][l] * q[l][j];
    __syncthreads();
  }
  if (row < n && column < n) c[row * n + column] = sum;
}
""",
    (3, 3, 1),  # type: ignore[arg-type]
    256,
    lambda: [whole(40, 40), whole(40, 40), np.zeros((40, 40), np.float32), 40],
    equals(2, lambda given: given[0] @ given[1]),
    (
        Bug("no barrier behind the products", "q[l][j];\n    __syncthreads();", "q[l][j];",
            "race", told=GUIDE),
        Bug("no barrier before the products", ": 0;\n    __syncthreads();\n    for",
            ": 0;\n    for", "race", told=GUIDE),
        Bug("the last tile is whole", "column < n && k + i < n ?", "column < n ?",
            "out of bounds", told="siboehm.com/articles/22/CUDA-MMM"),
        Bug("columns beyond the last are written", "if (row < n && column < n) c",
            "if (row < n) c", "out of bounds", told=MANUAL),
    ),
)  # fmt: skip

SCAN = Kernel(
    "sums of all before, with two buffers",
    r"""
extern "C" __global__ void k(const int *x, int *y) {
  __shared__ int s[2][128];
  int t = threadIdx.x, from = 0;
  s[0][t] = x[t];
  __syncthreads();
  for (int d = 1; d < 128; d *= 2) {
    s[1 - from][t] = s[from][t] + (t >= d ? s[from][t - d] : 0);
    from = 1 - from;
    __syncthreads();
  }
  y[t] = s[from][t];
}
""",
    1,
    128,
    lambda: [np.arange(128, dtype=np.int32), np.zeros(128, np.int32)],
    equals(1, lambda given: np.cumsum(given[0])),
    (
        Bug("in one buffer", "s[1 - from][t] = ", "s[from][t] = ", "race",
            told="GPU Gems 3, chapter 39"),
        Bug("no barrier between steps", "from;\n    __syncthreads();", "from;", "race",
            told="GPU Gems 3, chapter 39"),
        Bug("the first threads look before the array", "(t >= d ? s[from][t - d] : 0)",
            "s[0][t - d + from * 128]", "out of bounds", told=MANUAL),
    ),
)  # fmt: skip

STENCIL = Kernel(
    "a stencil with a halo",
    r"""
extern "C" __global__ void k(const int *x, int *y, int n) {
  __shared__ int s[66];
  int t = threadIdx.x, i = blockIdx.x * 64 + t;
  s[t + 1] = x[i];
  if (t == 0) s[0] = i > 0 ? x[i - 1] : 0;
  if (t == 63) s[65] = i + 1 < n ? x[i + 1] : 0;
  __syncthreads();
  y[i] = s[t] + s[t + 1] + s[t + 2];
}
""",
    4,
    64,
    lambda: [np.arange(256, dtype=np.int32), np.zeros(256, np.int32), 256],
    equals(1, lambda given: np.convolve(given[0], [1, 1, 1], "same")),
    (
        Bug("no barrier", "  __syncthreads();\n", "", "race", told="NVIDIA/nsight-training"),
        Bug("no right halo", "  if (t == 63) s[65] = i + 1 < n ? x[i + 1] : 0;\n", "", "unwritten",
            told="developer.nvidia.com/blog/finite-difference-methods-cuda-cc-part-1"),
        Bug("the halo beyond the end", "i + 1 < n ? x[i + 1] : 0", "x[i + 1]", "out of bounds",
            told="NVIDIA/nsight-training"),
        Bug("before the beginning", "i > 0 ? x[i - 1] : 0", "x[i - 1]", "out of bounds",
            told="NVIDIA/nsight-training"),
        Bug("in place", "const int *x, int *y, int n) {", "int *y, int *z, int n) { int *x = y;",
            "race", told="pytorch/pytorch#197829"),
    ),
)  # fmt: skip

TICKETS = Kernel(
    "a lock with tickets",
    r"""
extern "C" __global__ void k(int *ticket, int *serving, int *sum) {
  if (threadIdx.x == 0) {
    int mine = atomicAdd(ticket, 1);
    while (atomicAdd(serving, 0) != mine) {}
    __threadfence();
    sum[0] += blockIdx.x + 1;
    __threadfence();
    atomicAdd(serving, 1);
  }
}
""",
    16,
    32,
    lambda: [np.zeros(1, np.int32) for _ in range(3)],
    equals(2, lambda given: 136),
    (
        Bug("nobody is served next", "    atomicAdd(serving, 1);\n", "", "deadlock",
            told="Alglave et al., ASPLOS 2015"),
        Bug("served before it is done", "    sum[0] += blockIdx.x + 1;\n    __threadfence();\n"
            "    atomicAdd(serving, 1);", "    atomicAdd(serving, 1);\n    __threadfence();\n"
            "    sum[0] += blockIdx.x + 1;", "race", told="Alglave et al., ASPLOS 2015"),
        Bug("no fence behind the wait", "!= mine) {}\n    __threadfence();", "!= mine) {}", "race",
            told="Alglave et al., ASPLOS 2015"),
    ),
)  # fmt: skip

COMPACT = Kernel(
    "what is positive, one behind the other",
    r"""
extern "C" __global__ void k(const int *x, int *y, int *count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (x[i] > 0) y[atomicAdd(count, 1)] = x[i];
}
""",
    4,
    64,
    lambda: [np.arange(-128, 128, dtype=np.int32), np.zeros(127, np.int32), np.zeros(1, np.int32)],
    lambda given: np.testing.assert_array_equal(np.sort(given[1]), np.arange(1, 128)),
    (
        Bug("the count is no atomic", "atomicAdd(count, 1)", "(*count)++", "race",
            told="developer.nvidia.com/blog/cuda-pro-tip-optimized-filtering-warp-aggregated-atomics"),
        Bug("zero counts too", "x[i] > 0", "x[i] >= 0", "out of bounds", told=MANUAL),
    ),
)  # fmt: skip

PIPELINE = Kernel(
    "copies in two stages",
    r"""
__device__ void bring(float *to, const float *from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;\ncp.async.commit_group;"
    :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
extern "C" __global__ void k(const float *x, float *y, int turns) {
  __shared__ __align__(16) float s[2][256];
  int t = threadIdx.x;
  float sum = 0;
  bring(s[0] + 4 * t, x + 4 * t);
  for (int i = 0; i < turns; i++) {
    bring(s[(i + 1) % 2] + 4 * t, x + (i + 1) % turns * 256 + 4 * t);
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    for (int j = 0; j < 4; j++) sum += s[i % 2][(4 * t + j + 100) % 256];
    __syncthreads();
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  y[t] = sum;
}
""",
    1,
    64,
    lambda: [whole(4, 256), np.zeros(64, np.float32), 4],
    equals(1, lambda given: np.roll(given[0].sum(0), -100).reshape(64, 4).sum(1)),
    (
        Bug("one stage too few is waited for", "wait_group 1", "wait_group 2", "not waited for",
            told="docs.nvidia.com/cuda/parallel-thread-execution"),
        Bug("no barrier behind the wait", '"memory");\n    __syncthreads();', '"memory");',
            "race", told=GUIDE),
        Bug("the stage is filled while it is read", "256];\n    __syncthreads();", "256];",
            "race", told=GUIDE),
        Bug("a stage begins one number further", "x + 4 * t);", "x + 4 * t + 1);", "misaligned",
            told="docs.nvidia.com/cuda/parallel-thread-execution"),
    ),
)  # fmt: skip

VECTORS = Kernel(
    "a copy by four numbers",
    r"""
extern "C" __global__ void k(const float *x, float *y, int n) {
  int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (i + 3 < n) *(float4 *)(y + i) = *(const float4 *)(x + i);
  else for (; i < n; i++) y[i] = x[i];
}
""",
    2,
    32,
    lambda: [whole(250), np.zeros(250, np.float32), 250],
    equals(1, lambda given: given[0]),
    (
        Bug("the last four are no four", "if (i + 3 < n)", "if (i < n)", "out of bounds",
            told="xlite-dev/LeetCUDA, block_all_reduce.cu"),
        Bug("the row begins at an odd number", "const float4 *)(x + i)",
            "const float4 *)(x + i - 1)", "misaligned",
            told="developer.nvidia.com/blog/cuda-pro-tip-increase-performance-with-"
            "vectorized-memory-access"),
    ),
)  # fmt: skip

ROWS = Kernel(
    "one number of each far row",
    r"""
extern "C" __global__ void k(int *y, int stride, int n) {
  long long at = (long long)threadIdx.x * stride;
  if (at < n) y[at] = 7;
}
""",
    1,
    64,
    lambda: [np.zeros(64, np.int32), 70_000_000, 64],
    equals(0, lambda given: [7] + [0] * 63),
    (
        Bug("the product stays in 32 bits", "(long long)threadIdx.x * stride",
            "(int)(threadIdx.x * stride)", "overflow", told="fla-org/flash-linear-attention#1082"),
    ),
)  # fmt: skip

DYNAMIC = Kernel(
    "two arrays in dynamic shared memory",
    r"""
extern "C" __global__ void k(const int *x, int *y) {
  extern __shared__ int both[];
  int *first = both, *second = both + 64;
  int t = threadIdx.x;
  first[t] = x[t];
  second[t] = -x[t];
  __syncthreads();
  y[t] = first[63 - t] - second[t];
}
""",
    1,
    64,
    lambda: [np.arange(64, dtype=np.int32), np.zeros(64, np.int32)],
    equals(1, lambda given: [63] * 64),
    (
        Bug("bytes taken for numbers", "both + 64", "both + 64 * sizeof(int)", "out of bounds",
            told=MANUAL),
        Bug("they overlap", "both + 64", "both + 32", "race", told=MANUAL),
    ),
    settings={"shared": 512},
)  # fmt: skip

NAMED = Kernel(
    "producers and consumers at barriers with names",
    r"""
extern "C" __global__ void k(int *y) {
  __shared__ int s[32];
  int t = threadIdx.x % 32;
  for (int i = 0; i < 3; i++) {
    if (threadIdx.x < 32) {
      if (i) asm volatile("bar.sync 2, 64;" ::: "memory");
      s[t] = t + i;
      asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
      asm volatile("bar.sync 1, 64;" ::: "memory");
      y[i * 32 + t] = s[31 - t];
      if (i < 2) asm volatile("bar.arrive 2, 64;" ::: "memory");
    }
  }
}
""",
    1,
    64,
    lambda: [np.zeros((3, 32), np.int32)],
    equals(0, lambda given: np.arange(31, -1, -1) + np.arange(3)[:, None]),
    (
        Bug("more threads are named than come", "bar.sync 1, 64", "bar.sync 1, 96", "deadlock",
            told="ggml-org/llama.cpp#13469"),
        Bug("producers do not wait", 'if (i) asm volatile("bar.sync 2, 64;" ::: "memory");', "",
            "deadlock", told="ggml-org/llama.cpp#13469"),
        Bug("consumers arrive at another barrier", "bar.arrive 2, 64", "bar.arrive 3, 64",
            "deadlock", told="ggml-org/llama.cpp#13469"),
    ),
)  # fmt: skip

FRAGMENTS = Kernel(
    "a product by tensor cores, written through shared memory",
    r"""
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const __half *a, const __half *b, float *c) {
  __shared__ __align__(32) float s[256];
  if (threadIdx.x < 32) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(s, fc, 16, wmma::mem_row_major);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += 64) c[i] = s[i];
}
""",
    1,
    64,
    lambda: [
        whole(16, 16).astype(np.float16), whole(16, 16).astype(np.float16),
        np.zeros((16, 16), np.float32),
    ],
    equals(2, lambda given: given[0].astype(np.float32) @ given[1].astype(np.float32)),
    (
        Bug("half a warp multiplies", "if (threadIdx.x < 32) {", "if (threadIdx.x < 16) {",
            "partial warp", told=GUIDE),
        Bug("no barrier behind the store", "  __syncthreads();\n", "", "race", told=GUIDE),
        Bug("the leading dimension of another matrix", "(fb, b, 16)", "(fb, b, 32)",
            "out of bounds", told=GUIDE),
    ),
)  # fmt: skip

TOLD_CUDA = (
    SUM, WARP, SOFTMAX, TRANSPOSE, PRODUCT, SCAN, STENCIL, TICKETS, COMPACT, PIPELINE, VECTORS,
    ROWS, DYNAMIC, NAMED, FRAGMENTS,
)  # fmt: skip
