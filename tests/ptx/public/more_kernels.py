"""Kernels of later lists: products of two courses, sums, softmaxes, transpositions, samples."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.ptx.public.cuda_kernels import HALF, SINGLE, WAIT, I, Pairs, normal, softmax
from tests.ptx.public.files import Case, cuda_kernel

__all__ = ["MORE"]

SGEMM, LEET, SAMPLES = "SGEMM_CUDA", "LeetCUDA", "cuda-samples"
Run = Callable[..., Pairs]


def compiled(folder: Path, case: tuple[str, str]) -> Any:
    file, name = case
    return cuda_kernel(folder / file, name, is_template="<" in name)


def of(repository: str, file: str, name: str, run: Run, unit: float = SINGLE, **given: Any) -> Case:
    """A case; the driver is given the file and the kernel's name, and what it has of its own."""
    finding, told = given.pop("finding", None), given.pop("told", "")
    shown = name.partition("<")[0] + told
    return Case(shown, repository, file, partial(run, case=(file, name), **given), unit, finding)


def sgemm(folder: Path, case: tuple[str, str], grid: tuple[int, int], threads: Any) -> Pairs:
    draw, (M, N, K) = np.random.default_rng(0), (128, 128, 32)
    a, b, c = normal(draw, M, K), normal(draw, K, N), normal(draw, M, N)
    wanted = 0.5 * (a.astype(np.float64) @ b) + 3 * c.astype(np.float64)
    given = [I(M), I(N), I(K), np.float32(0.5), a, b, np.float32(3), c]
    compiled(folder, case).launch(grid, threads, given, timeout=WAIT)
    return {"c": (c, wanted)}


def hgemm(
    folder: Path, case: tuple[str, str], size: tuple[int, int, int], grid: Any, threads: int
) -> Pairs:
    draw, (M, N, K) = np.random.default_rng(0), size
    a, b = normal(draw, M, K, dtype=np.float16), normal(draw, K, N, dtype=np.float16)
    c = np.zeros((M, N), np.float16)
    compiled(folder, case).launch(grid, threads, [a, b, c, I(M), I(N), I(K)], timeout=WAIT)
    return {"c": (c, a.astype(np.float64) @ b.astype(np.float64))}


def transposed(
    folder: Path, case: tuple[str, str], each: tuple[int, int], size: tuple[int, int]
) -> Pairs:
    """``each``: how many rows and columns a thread moves, of blocks of 16 x 16 threads."""
    M, N = size
    x, y = normal(np.random.default_rng(0), M, N), np.zeros((N, M), np.float32)
    grid = -(-N // (16 * each[1])), -(-M // (16 * each[0]))
    compiled(folder, case).launch(grid, (16, 16), [x, y, I(M), I(N)], timeout=WAIT)
    return {"y": (y, x.T.astype(np.float64))}


def total(folder: Path, case: tuple[str, str], dtype: Any, each: int, count: int = 992) -> Pairs:
    draw = np.random.default_rng(0)
    x = draw.integers(-9, 9, count).astype(dtype) if dtype is np.int8 else draw.random(count)
    x, y = x.astype(dtype), np.zeros(1, np.int32 if dtype is np.int8 else np.float32)
    given = [x, y, I(count)]
    compiled(folder, case).launch(-(-count // 256), 256 // each, given, timeout=WAIT)
    return {"sum": (y, x.astype(np.float64).sum(keepdims=True))}


def dot(folder: Path, case: tuple[str, str], dtype: Any, each: int) -> Pairs:
    draw = np.random.default_rng(0)
    a, b = (draw.random(992).astype(dtype) for _ in range(2))
    y = np.zeros(1, np.float32)
    compiled(folder, case).launch(4, 256 // each, [a, b, y, I(992)], timeout=WAIT)
    return {"sum": (y, (a.astype(np.float64) * b).sum(keepdims=True))}


def soft_rows(folder: Path, case: tuple[str, str], dtype: Any, each: int, count: int) -> Pairs:
    x = normal(np.random.default_rng(0), 3, 512, dtype=dtype)
    y = np.zeros_like(x)
    compiled(folder, case).launch(3, 512 // each, [x, y, I(count)], timeout=WAIT)
    return {"y": (y, softmax(x.astype(np.float64)))}


def sgemv(folder: Path, case: tuple[str, str]) -> Pairs:
    draw = np.random.default_rng(0)
    a, x, y = normal(draw, 20, 96), normal(draw, 96), np.zeros(20, np.float32)
    compiled(folder, case).launch(5, (32, 4), [a, x, y, I(20), I(96)], timeout=WAIT)
    return {"y": (y, a.astype(np.float64) @ x)}


def rope(folder: Path, case: tuple[str, str], grid: int, threads: int) -> Pairs:
    """Pairs of neighbours, 64 wide, at 5 positions."""
    x = normal(np.random.default_rng(0), 5, 64)
    y = np.zeros_like(x)
    compiled(folder, case).launch(grid, threads, [x, y, I(5), I(32)], timeout=WAIT)
    angle = np.arange(5)[:, None] / 10000.0 ** (np.arange(32) / 32)
    turned = (x[:, ::2] + 1j * x[:, 1::2].astype(np.float64)) * np.exp(1j * angle)
    return {"y": (y, np.stack([turned.real, turned.imag], -1).reshape(5, 64))}


def tiled_product(folder: Path, case: tuple[str, str]) -> Pairs:
    draw = np.random.default_rng(0)
    a, b, c = normal(draw, 64, 96), normal(draw, 96, 48), np.zeros((64, 48), np.float32)
    compiled(folder, case).launch((3, 4), (16, 16), [c, a, b, I(96), I(48)], timeout=WAIT)
    return {"c": (c, a.astype(np.float64) @ b)}


def walsh(folder: Path, case: tuple[str, str]) -> Pairs:
    x = normal(np.random.default_rng(0), 256)
    y = np.zeros_like(x)
    compiled(folder, case).launch(1, 64, [y, x, I(8)], shared=1024, timeout=WAIT)
    signs = np.array([[(-1) ** (i & j).bit_count() for j in range(256)] for i in range(256)])
    return {"y": (y, signs @ x.astype(np.float64))}


def product(file: str, name: str, grid: tuple[int, int], threads: Any) -> Case:
    path, kernel = f"src/kernels/{file}.cuh", name.partition("<")[0]
    told = f" (kernel {file.partition('_')[0]})"
    return of(SGEMM, path, name if "<" in name else kernel, sgemm, grid=grid, threads=threads,
              told=told)  # fmt: skip


L = "kernels/"
MMA, WMMA = L + "hgemm/mma/basic/hgemm_mma.cu", L + "hgemm/wmma/hgemm_wmma.cu"
TRANSPOSE, REDUCE = L + "mat-transpose/mat_transpose.cu", L + "reduce/block_all_reduce.cu"
DOT, SOFT = L + "dot-product/dot_product.cu", L + "softmax/softmax.cu"
MORE = (
    product("1_naive", "sgemm_naive", (4, 4), (32, 32)),
    product("2_kernel_global_mem_coalesce", "sgemm_global_mem_coalesce<32>", (4, 4), 1024),
    product("3_kernel_shared_mem_blocking", "sgemm_shared_mem_block<32>", (4, 4), 1024),
    product("4_kernel_1D_blocktiling", "sgemm1DBlocktiling<64, 64, 8, 8>", (2, 2), 512),
    product("5_kernel_2D_blocktiling", "sgemm2DBlocktiling<128, 128, 8, 8, 8>", (1, 1), 256),
    product("6_kernel_vectorize", "sgemmVectorize<128, 128, 8, 8, 8>", (1, 1), 256),
    product("7_kernel_resolve_bank_conflicts", "sgemmResolveBankConflicts<128, 128, 8, 8, 8>",
            (1, 1), 256),
    product("8_kernel_bank_extra_col", "sgemmResolveBankExtraCol<128, 128, 8, 8, 8>", (1, 1), 256),
    product("9_kernel_autotuned", "sgemmAutotuned<128, 128, 16, 8, 8>", (1, 1), 256),
    product("10_kernel_warptiling", "sgemmWarptiling<128, 128, 16, 64, 64, 4, 8, 4, 128>",
            (1, 1), 128),
    of(LEET, MMA, "hgemm_mma_m16n8k16_naive_kernel<16, 8, 16>", hgemm, HALF,
       size=(64, 64, 64), grid=(8, 4), threads=32),
    of(LEET, MMA, "hgemm_mma_m16n8k16_mma2x4_warp4x4_kernel<16, 8, 16, 2, 4, 4, 4, 8, 8>", hgemm,
       HALF, size=(128, 128, 64), grid=(1, 1), threads=256),
    of(LEET, WMMA, "hgemm_wmma_m16n16k16_naive_kernel<16, 16, 16>", hgemm, HALF,
       size=(64, 64, 64), grid=(4, 4), threads=32),
    of(LEET, WMMA, "hgemm_wmma_m16n16k16_mma4x2_kernel<16, 16, 16, 4, 2>", hgemm, HALF,
       size=(128, 64, 64), grid=(2, 2), threads=256),
    of(LEET, WMMA, "hgemm_wmma_m16n16k16_mma4x2_warp2x4_kernel<16, 16, 16, 4, 2, 2, 4>", hgemm,
       HALF, size=(128, 128, 64), grid=(1, 1), threads=256),
    of(LEET, TRANSPOSE, "mat_transpose_f32_row2col2d_kernel", transposed, each=(1, 1),
       size=(60, 100)),
    of(LEET, TRANSPOSE, "mat_transpose_f32x4_shared_row2col2d_kernel", transposed, each=(4, 1),
       size=(64, 64)),
    of(LEET, TRANSPOSE, "mat_transpose_f32x4_shared_row2col2d_kernel", transposed, each=(4, 1),
       size=(60, 100), finding="partial warp", told=", 60 x 100"),
    of(LEET, REDUCE, "block_all_reduce_sum_f32_f32_kernel<256>", total, dtype=np.float32, each=1),
    of(LEET, REDUCE, "block_all_reduce_sum_f16_f32_kernel<256>", total, HALF, dtype=np.float16,
       each=1),
    of(LEET, REDUCE, "block_all_reduce_sum_i8_i32_kernel<256>", total, dtype=np.int8, each=1),
    of(LEET, REDUCE, "block_all_reduce_sum_f32x4_f32_kernel<64>", total, dtype=np.float32, each=4,
       finding="out of bounds"),
    of(LEET, DOT, "dot_prod_f32_f32_kernel<256>", dot, dtype=np.float32, each=1),
    of(LEET, DOT, "dot_prod_f16_f32_kernel<256>", dot, HALF, dtype=np.float16, each=1),
    of(LEET, SOFT, "safe_softmax_f32_per_token_kernel<512>", soft_rows, dtype=np.float32, each=1,
       count=1536),
    of(LEET, SOFT, "safe_softmax_f16x8_pack_f32_per_token_kernel<64>", soft_rows, HALF,
       dtype=np.float16, each=8, count=1536),
    of(LEET, SOFT, "online_safe_softmax_f32_per_token_kernel<512>", soft_rows, dtype=np.float32,
       each=1, count=512, finding="out of bounds"),
    of(LEET, L + "sgemv/sgemv.cu", "sgemv_k32", sgemv),
    of(LEET, L + "rope/rope.cu", "rope_f32_v2_kernel", rope, grid=5, threads=32),
    of(LEET, L + "rope/rope.cu", "rope_f32_kernel", rope, grid=1, threads=256,
       finding="out of bounds"),
    of(SAMPLES, "Samples/0_Introduction/matrixMul/matrixMul.cu", "MatrixMulCUDA<16>",
       tiled_product),
    of(SAMPLES, "Samples/5_Domain_Specific/fastWalshTransform/fastWalshTransform_kernel.cuh",
       "fwtBatch1Kernel", walsh),
)  # fmt: skip
