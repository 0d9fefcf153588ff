"""Kernels in CUDA C++: llm.c and cuda_hgemm; each launched as its repository launches it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.ptx.public.files import Case, cuda_kernel

__all__ = ["CUDA"]

Pairs = dict[str, tuple[Any, Any]]
HALF, SINGLE, WAIT = 2.0**-11, 2.0**-24, 100
LLM, HGEMM = "llm.c", "cuda_hgemm"
SOFTMAX, BACKWARD = "dev/cuda/softmax_forward.cu", "dev/cuda/layernorm_backward.cu"
FORWARD, ATTENTION = "dev/cuda/layernorm_forward.cu", "dev/cuda/attention_backward.cu"
BARRIER = (
    "float offset = max_or_sum_storage[0];",
    "float offset = max_or_sum_storage[0]; __syncthreads();",
)
Numbers = np.random.Generator
I = np.int32  # noqa: E741


def normal(draw: Numbers, *shape: int, dtype: Any = np.float32) -> Any:
    return draw.standard_normal(shape).astype(dtype)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_rows(
    folder: Path, name: str, shared: int, blocks: int, change: tuple[str, str] | None = None
) -> Pairs:
    x = normal(np.random.default_rng(0), 6, 200)
    y = np.zeros_like(x)
    kernel = cuda_kernel(folder / SOFTMAX, name, change=change)
    kernel.launch(blocks, 128, [y, x, I(6), I(200)], shared=shared, timeout=WAIT)
    return {"y": (y, softmax(x.astype(np.float64)))}


def normalised(x: Any) -> tuple[Any, Any, Any]:
    x = x.astype(np.float64)
    mean, r = x.mean(-1), 1 / np.sqrt(x.var(-1) + 1e-5)
    return (x - mean[:, None]) * r[:, None], mean, r


def layernorm_forward(folder: Path) -> Pairs:
    draw = np.random.default_rng(0)
    x, w, b = normal(draw, 10, 200), normal(draw, 200), normal(draw, 200)
    y, mean, rstd = np.zeros_like(x), np.zeros(10, np.float32), np.zeros(10, np.float32)
    kernel = cuda_kernel(folder / FORWARD, "layernorm_forward_kernel3")
    kernel.launch(3, 128, [y, mean, rstd, x, w, b, I(10), I(200)], timeout=WAIT)
    n, wanted_mean, r = normalised(x)
    return {"y": (y, n * w + b), "mean": (mean, wanted_mean), "rstd": (rstd, r)}


def layernorm_backward(folder: Path) -> Pairs:
    """B 2, T 6: three blocks of four warps, a row each; sums in shared memory, then in global."""
    draw, (B, T, C) = np.random.default_rng(0), (2, 6, 128)
    x, g, w = normal(draw, B * T, C), normal(draw, B * T, C), normal(draw, C)
    n, mean, r = normalised(x)
    dx, unused = np.zeros_like(x), np.zeros((2, C), np.float32)
    dw, db = np.zeros(C, np.float32), np.zeros(C, np.float32)
    name = "layernorm_backward_kernel2<float, float, float, float>"
    kernel = cuda_kernel(folder / BACKWARD, name, is_template=True)
    given = [dx, *unused, g, x, w, mean.astype(np.float32), r.astype(np.float32), I(B), I(T), I(C)]
    kernel.launch(3, 128, [*given, dw, db], shared=8 * C, timeout=WAIT)
    t = g.astype(np.float64) * w
    wanted = r[:, None] * (t - n * (t * n).mean(-1, keepdims=True) - t.mean(-1, keepdims=True))
    return {
        "dx": (dx, wanted),
        "dw": (dw, (g * n).sum(0)),
        "db": (db, g.astype(np.float64).sum(0)),
    }


def softmax_backward(folder: Path) -> Pairs:
    draw, (B, heads, T, width) = np.random.default_rng(0), (1, 2, 24, 32)
    lower = np.tril(np.ones((T, T), bool))
    score = np.where(lower, normal(draw, heads, T, T).astype(np.float64), -np.inf)
    weights, g = softmax(score).astype(np.float32), normal(draw, heads, T, T)
    out = np.zeros_like(g)
    kernel = cuda_kernel(folder / ATTENTION, "softmax_autoregressive_backward_kernel4")
    given = [out, g, weights, I(B), I(T), I(heads * width), I(heads)]
    kernel.launch((1, B * heads), 256, given, timeout=WAIT)
    p = weights.astype(np.float64)
    wanted = width**-0.5 * p * (g - (p * g).sum(-1, keepdims=True))
    return {"dpreatt": (out, wanted)}


def hgemm(
    folder: Path,
    file: str,
    name: str,
    size: tuple[int, int, int],
    grid: tuple[int, ...],
    threads: int,
    shared: int,
) -> Pairs:
    """A (M, K) times B, which lies as (N, K): halves, added up in halves by the tensor cores."""
    draw, (M, N, K) = np.random.default_rng(0), size
    a, b = normal(draw, M, K, dtype=np.float16), normal(draw, N, K, dtype=np.float16)
    c = np.zeros((M, N), np.float16)
    given = [a, b, c, *(np.uint64(x) for x in size)]
    kernel = cuda_kernel(folder / file, name)
    kernel.launch(grid, threads, given, shared=shared, timeout=WAIT)
    return {"c": (c, a.astype(np.float64) @ b.T.astype(np.float64))}


def product(name: str, size: tuple[int, int, int], grid: tuple[int, ...], shared: int) -> Case:
    file = f"src/{'wmma' if name.startswith('wmma') else 'mma'}/{name}.cu"
    first, *others = name.split("_")
    kernel = first + "".join(each.capitalize() for each in others) + "Kernel"
    run: Callable[[Path], Pairs] = partial(
        hgemm, file=file, name=kernel, size=size, grid=grid, threads=256 if shared else 32,
        shared=shared,
    )  # fmt: skip
    return Case(kernel, HGEMM, file, run, HALF)


TILE, STRIDED = (256, 128, 64), (16, 1, 1)
CUDA = (
    Case("softmax_forward_kernel4", LLM, SOFTMAX,
         partial(softmax_rows, name="softmax_forward_kernel4", shared=16, blocks=6), SINGLE,
         finding="race"),
    Case("softmax_forward_kernel4, with one barrier more", LLM, SOFTMAX,
         partial(softmax_rows, name="softmax_forward_kernel4", shared=16, blocks=6,
                 change=BARRIER), SINGLE),
    Case("softmax_forward_online_kernel2", LLM, SOFTMAX,
         partial(softmax_rows, name="softmax_forward_online_kernel2", shared=0, blocks=2), SINGLE),
    Case("layernorm_forward_kernel3", LLM, FORWARD, layernorm_forward, SINGLE),
    Case("layernorm_backward_kernel2", LLM, BACKWARD, layernorm_backward, SINGLE),
    Case("softmax_autoregressive_backward_kernel4", LLM, ATTENTION, softmax_backward, SINGLE),
    product("mma_naive", (32, 24, 48), (3, 2), 0),
    product("mma_permuted", TILE, STRIDED, 256 * 128 * 2),
    product("mma_async_stage3", (256, 128, 128), STRIDED, (256 + 128) * 32 * 2 * 3),
    product("wmma_naive", (32, 48, 48), (3, 2), 0),
    product("wmma_base", TILE, STRIDED, 256 * 128 * 2),
    product("wmma_async_stage2", (256, 128, 96), STRIDED, 256 * 136 * 2),
)  # fmt: skip
