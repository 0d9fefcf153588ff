"""Kernels as courses and samples of CUDA teach them, in our words: each gives NumPy's answer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnverify import ptx
from attnverify.ptx.launchers.nvrtc import compile_source

RANDOM = np.random.default_rng(38)


def whole(*shape: int, low: int = -50, high: int = 50) -> np.ndarray:
    return RANDOM.integers(low, high, shape).astype(np.int32)


SCAN = r"""
extern "C" __global__ void scan(const int *x, int *y, int *sums) {
  __shared__ int tree[256];
  int t = threadIdx.x, at = blockIdx.x * 256 + t;
  tree[t] = x[at];
  for (int d = 1; d < 256; d *= 2) {
    __syncthreads();
    int i = (t + 1) * 2 * d - 1;
    if (i < 256) tree[i] += tree[i - d];
  }
  __syncthreads();
  if (t == 0) { sums[blockIdx.x] = tree[255]; tree[255] = 0; }
  for (int d = 128; d > 0; d /= 2) {
    __syncthreads();
    int i = (t + 1) * 2 * d - 1;
    if (i < 256) { int left = tree[i - d]; tree[i - d] = tree[i]; tree[i] += left; }
  }
  __syncthreads();
  y[at] = tree[t];
}"""


def scan(run: Callable[..., None]) -> None:
    x, y, sums = whole(4, 256), np.zeros((4, 256), np.int32), np.zeros(4, np.int32)
    run(4, 256, [x, y, sums])
    assert np.array_equal(y, np.cumsum(x, 1) - x) and np.array_equal(sums, x.sum(1))


SORT = r"""
__device__ __noinline__ void order(int &a, int &b, bool up) {
  if ((a > b) == up) { int c = a; a = b; b = c; }
}
extern "C" __global__ void sort(int *x) {
  extern __shared__ int s[];
  int t = threadIdx.x;
  s[t] = x[t];
  for (int size = 2; size <= blockDim.x; size *= 2)
    for (int d = size / 2; d > 0; d /= 2) {
      __syncthreads();
      if ((t & d) == 0) order(s[t], s[t | d], (t & size) == 0);
    }
  __syncthreads();
  x[t] = s[t];
}"""


def sort(run: Callable[..., None]) -> None:
    x = whole(256)
    wanted = np.sort(x)
    run(1, 256, [x], shared=1024)
    assert np.array_equal(x, wanted)


HISTOGRAM = r"""
extern "C" __global__ void histogram(const unsigned char *x, int n, unsigned *bins) {
  __shared__ unsigned own[4][256];
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) own[i / 256][i % 256] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&own[threadIdx.x / 32][x[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x)
    atomicAdd(bins + i, own[0][i] + own[1][i] + own[2][i] + own[3][i]);
}"""


def histogram(run: Callable[..., None]) -> None:
    x, bins = RANDOM.integers(0, 256, 3001).astype(np.uint8), np.zeros(256, np.uint32)
    run(3, 128, [x, 3001, bins])
    assert np.array_equal(bins, np.bincount(x, minlength=256))


DOT = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void dot(const int *x, const int *y, int n, int *total) {
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  int sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    sum = __dp4a(x[i], y[i], sum);
  sum = cg::reduce(warp, sum, cg::plus<int>());
  if (warp.thread_rank() == 0) atomicAdd(total, sum);
}"""


def dot(run: Callable[..., None]) -> None:
    x, y = (RANDOM.integers(-128, 128, 4 * 700).astype(np.int8) for _ in range(2))
    total = np.zeros(1, np.int32)
    run(3, 128, [x.view(np.int32), y.view(np.int32), 700, total])
    assert total[0] == x.astype(int) @ y.astype(int)


WMMA = r"""
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void multiply(const signed char *a, const signed char *b, int *c, int k) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::col_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 16, int> sum;
  wmma::fill_fragment(sum, 0);
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * 16, column = blockIdx.y * 16;
  for (int i = 0; i < k; i += 16) {
    wmma::load_matrix_sync(left, a + i * gridDim.x * 32 + row * 16, 16);
    wmma::load_matrix_sync(right, b + i * gridDim.y * 16 + column * 16, 16);
    wmma::mma_sync(sum, left, right, sum);
  }
  wmma::store_matrix_sync(c + row * gridDim.y * 16 + column, sum, gridDim.y * 16,
                          wmma::mem_row_major);
}"""


def multiply(run: Callable[..., None]) -> None:
    a, b = (
        RANDOM.integers(-128, 128, shape).astype(np.int8) for shape in ((3, 64, 16), (3, 32, 16))
    )
    c = np.zeros((64, 32), np.int32)
    run((2, 2), 64, [a, b, c, 48])
    assert np.array_equal(c, np.einsum("kmi,kni->mn", a.astype(int), b.astype(int)))


STENCIL = r"""
extern "C" __global__ void life(const unsigned char *now, unsigned char *next, int size) {
  __shared__ unsigned char tile[18][18];
  int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
  for (int i = threadIdx.y * 16 + threadIdx.x; i < 18 * 18; i += 256) {
    int row = (blockIdx.y * 16 + i / 18 - 1 + size) % size;
    int column = (blockIdx.x * 16 + i % 18 - 1 + size) % size;
    tile[i / 18][i % 18] = now[row * size + column];
  }
  __syncthreads();
  int count = 0;
  for (int dy = 0; dy < 3; ++dy)
    for (int dx = 0; dx < 3; ++dx)
      if (dx != 1 || dy != 1) count += tile[threadIdx.y + dy][threadIdx.x + dx];
  bool alive = tile[threadIdx.y + 1][threadIdx.x + 1];
  next[y * size + x] = count == 3 || (alive && count == 2);
  if (__syncthreads_count(count) == 0) next[y * size + x] = 0;
}"""


def life(run: Callable[..., None]) -> None:
    now, found = RANDOM.integers(0, 2, (48, 48)).astype(np.uint8), np.zeros((48, 48), np.uint8)
    run((3, 3), (16, 16), [now, found, 48])
    turned = [np.roll(now, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
    count = sum(x.astype(int) for x in turned) - now
    assert np.array_equal(found, (count == 3) | ((now == 1) & (count == 2)))


KERNELS: dict[str, tuple[str, Callable[..., None]]] = {
    "scan": (SCAN, scan),
    "sort": (SORT, sort),
    "histogram": (HISTOGRAM, histogram),
    "dot": (DOT, dot),
    "multiply": (WMMA, multiply),
    "life": (STENCIL, life),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", [80, 90])
def test_a_kernel_of_a_course_gives_numpys_answer(name: str, target: int) -> None:
    source, check = KERNELS[name]
    kernel: Any = compile_source(source, ("-std=c++17",), target)[name]
    check(kernel.launch)


def test_dynamic_shared_memory_begins_behind_what_is_static_and_has_all_its_bytes() -> None:
    """One byte that is static moves it by 16."""
    source = r"""
    #include <math.h>
    #include <float.h>
    #include <limits.h>
    extern "C" __global__ void k(float *out) {
      __shared__ bool last;
      extern __shared__ float room[];
      room[threadIdx.x] = threadIdx.x;
      if (threadIdx.x == 0) last = gridDim.x == 1;
      __syncthreads();
      out[threadIdx.x] = last ? room[127 - threadIdx.x] : -INFINITY;
      if (threadIdx.x == 0)
        out[128] = FLT_MAX > 1 && INT_MAX + 1LL == -(long long)INT_MIN ? M_PI : NAN;
    }
    """
    out = np.zeros(129, np.float32)
    compile_source(source)["k"].launch(1, 128, [out], shared=512)
    assert out.tolist() == [*range(127, -1, -1), np.float32(np.pi)]
    with pytest.raises(ptx.Finding, match="out of bounds: 4 bytes at 524"):
        compile_source(source)["k"].launch(1, 128, [out], shared=508)


def test_a_compiler_s_warnings_do_not_hide_its_errors() -> None:
    with pytest.raises(ValueError, match=r"compile it:\nkernel.cu\(2\): error: identifier"):
        compile_source("__global__ void k(double4 x) {}\n__global__ void l() { nobody(); }")
