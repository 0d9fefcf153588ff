"""
The CUDA C++ kernels on a machine without a GPU: their source compiled by g++, with every access
checked (``kernels/host.hpp``).

Values, gradients and the rest are judged by ``pytest -m differential``; here are the guards of the
machine, each with the defect that it catches, faults planted in the kernels, and what the suite
does not draw. Nothing here was run on a GPU.
"""

import math
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify import ROOT, cupy_impl
from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import load
from attnverify.cupy_impl.cuda import (
    additive,
    attention,
    kernel_arguments,
    kernel_configs,
    launch,
    source,
)
from attnverify.cupy_impl.cuda.emulation import compile_and_run
from attnverify.cupy_impl.cuda.emulation.compile_and_run import KernelFault
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge
from attnverify.ptx.launchers.nvrtc import compile_source, compile_text

SDPA, ALIBI, XL, LEARNED = (
    "scaled_dot_product_attention",
    "alibi_attention",
    "transformer_xl_attention",
    "learned_relative_attention",
)
ADDITIVE = "additive_attention"
OPERATIONS = (SDPA, ALIBI, XL, LEARNED, ADDITIVE)


@pytest.fixture(scope="module")
def backend() -> Backend:
    return load("cupy_impl")


def named(backend: Backend, operation: str) -> Implementation:
    return next(
        i for i in backend.implementations if (i.operation.name, i.how) == (operation, "cuda")
    )


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the kernels' sources, from which they are compiled instead, and quickly."""
    folder = tmp_path / "kernels"
    shutil.copytree(source.FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(source, "FOLDER", folder)
    monkeypatch.setattr(
        compile_and_run,
        "OPTIONS",
        tuple("-O0" if option == "-Og" else option for option in compile_and_run.OPTIONS),
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compile_and_run.library.cache_clear()
    yield folder
    compile_and_run.library.cache_clear()


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> ndarray:
    x: ndarray = cupy_impl.from_numpy(np.random.default_rng(seed).standard_normal(shape), dtype)
    return x


def qkv(
    N: int = 5, M: int = 19, D: int = 7, E: int = 3, dtype: str = "float32"
) -> tuple[ndarray, ndarray, ndarray]:
    return (
        normal(2, 3, N, D, seed=1, dtype=dtype),
        normal(2, 3, M, D, seed=2, dtype=dtype),
        normal(2, 3, M, E, seed=3, dtype=dtype),
    )


# Guards: what a GPU would let pass

PROBE = """
#include "primitives.cuh"
constexpr int THREADS = 64;
struct Params { Tensor x; int which; };
KERNEL(forward)
{
    Arena arena;
    const Tile<float> tile = arena.tile<float>("tile", 1, 60, 64);
    const Matrix<float> x = matrix<float>(p.x, p.which == HEAD ? 1 : 0, 0);
    const int i = thread_index();
    if (i < 60 && p.which != UNWRITTEN) tile.put(0, i, i);
    if (p.which != BARRIER && p.which != WARP_BARRIER) sync_block();
    if (p.which == WARP_BARRIER) sync_warp();
    if (p.which == GOOD) { x.write(0, i, tile.get(0, 59 - i % 60)); return; }
    if (p.which == WARP_GOOD && i < 32) {
        tile.put(0, i, 2 * i); sync_warp(); x.write(0, i, tile.get(0, 31 - i));
    }
    if (p.which == READ) x.read(0, 64);
    if (p.which == WRITE) x.write(-1, i, 0);
    if (p.which == PADDING) tile.get(0, 60);
    if (p.which == SHARED_WRITE) tile.put(1, 0, 0);
    if (p.which == UNWRITTEN) tile.get(0, 0);
    if (p.which == BARRIER || p.which == WARP_BARRIER) tile.get(0, 59 - i % 60);
    if (p.which == REWRITTEN && i < 60) { tile.put(0, i, 1); tile.get(0, 59 - i); }
    if (p.which == AFTER_READ) {
        tile.get(0, 0); if (i == 0) tile.put(0, 0, 1); if (i == 1) tile.put(0, 0, 2);
    }
    if (p.which == TWICE) tile.put(0, 0, i);
    if (p.which == DIVERGENT) { if (i < 32) sync_block(); }
    if (p.which == HALF_A_WARP) { if (i < 16) sync_warp(); }
    if (p.which == COLLECTIVES) { if (i % 2) sync_warp(); else shuffle_xor(1, 2); }
    if (p.which == ALIGNED) tile.get_pack(0, 1);
    if (p.which == ROOM) arena.tile<float>("big", 1, 1 << 20, 1 << 20);
}
"""
WRONG = {
    "HEAD": r"head \[1, 0\] of x, which has 1 x 1 heads",
    "READ": r"read of x\[0, 64\], which has 2 x 64 elements",
    "WRITE": r"write to x\[-1, \d+\], which has 2 x 64 elements",
    "PADDING": r"read of tile\[0, 60\], which has 1 x 60 elements",
    "SHARED_WRITE": r"write to tile\[1, 0\], which has 1 x 60 elements",
    "UNWRITTEN": r"read of tile\[0, 0\], which nobody has written",
    "BARRIER": r"read of tile\[0, \d+\], (which nobody has written|written by thread \d+ with no "
    r"barrier between)",
    "WARP_BARRIER": r"read of tile\[0, \d+\], (which nobody has written|written by thread \d+ with "
    r"no barrier between)",
    "REWRITTEN": r"(read of tile\[0, \d+\], written by thread \d+|write to tile\[0, \d+\], read by "
    r"another thread) with no barrier between",
    "AFTER_READ": r"write to tile\[0, 0\], read by another thread with no barrier between|read of "
    r"tile\[0, 0\], written by",
    "TWICE": r"write to tile\[0, 0\], written by thread \d+ with no barrier between",
    "DIVERGENT": r"waits in a barrier of the block for thread \d+, which has ended",
    "HALF_A_WARP": r"waits in a barrier of the warp for thread \d+, which has ended",
    "COLLECTIVES": r"is in a (shuffle|barrier of the warp) while other lanes of its warp are in a "
    r"(shuffle|barrier of the warp)",
    "ALIGNED": r"access to 16 bytes of tile\[0, 1\], not aligned",
    "ROOM": "big does not fit into the block's shared memory",
}
KINDS = ("GOOD", "WARP_GOOD", *WRONG)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], ndarray]:
    """A kernel that does one thing wrong, or nothing."""
    folder = tmp_path_factory.mktemp("probe") / "kernels"
    shutil.copytree(source.FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "probe.cu").write_text(
        "".join(f"#define {kind} {place}\n" for place, kind in enumerate(KINDS)) + PROBE
    )

    def run(kind: str, seed: int = 1) -> ndarray:
        x = np.zeros((2, 64), "float32")
        made = kernel_configs.Instance("probe.cu", "float", 32, 32, 64)
        params = kernel_arguments.packed(
            [kernel_arguments.tensor(x, "x", "ij")], [KINDS.index(kind)], []
        )
        compile_and_run.launch(made, "forward", (2, 1), params, folder, seed)
        return x

    return run


def test_a_kernel_without_fault_runs(probe: Callable[[str, int], ndarray]) -> None:
    assert np.array_equal(probe("GOOD", 1)[0], 59 - np.arange(64) % 60)
    assert np.array_equal(probe("WARP_GOOD", 1)[0, :32], 62 - 2 * np.arange(32))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", WRONG)
def test_what_a_gpu_would_let_pass_is_an_error_that_names_it(
    kind: str, seed: int, probe: Callable[[str, int], ndarray]
) -> None:
    with pytest.raises(
        KernelFault, match=rf"^forward, block \(\d, 0\), thread \d+: ({WRONG[kind]})"
    ):
        probe(kind, seed)


def test_the_machine_runs_on_after_a_fault(probe: Callable[[str, int], ndarray]) -> None:
    with pytest.raises(KernelFault):
        probe("DIVERGENT", 1)
    assert probe("GOOD", 2)[0].any()


def test_parameters_of_another_size_are_refused() -> None:
    made = kernel_configs.instance("attention.cu", "float32", 16, False, True, False)
    with pytest.raises(KernelFault, match=r"its parameters have 1[0-9]{3} bytes, 8 were given"):
        compile_and_run.launch(made, "forward", (1, 1), bytes(8))


# Faults planted in the kernels are caught by the guards or by the draws of the suite

FAULTS = {
    "missing barrier": (
        "attention.cu",
        SDPA,
        "false);\n        sync_block();\n        if (idle",
        "false);\n        if (idle",
    ),
    "next step's keys too early": ("attention.cu", SDPA, "if (step) sync_block();", ""),
    "missing barrier of the warp": (
        "positions.cuh",
        XL,
        "ROWS + column, x); });\n        sync_warp();",
        "ROWS + column, x); });",
    ),
    "stale carry": (
        "positions.cuh",
        LEARNED,
        "if (column >= STEP - ROWS) strip.put",
        "if (column > STEP) strip.put",
    ),
    "unwritten shared memory": ("attention.cu", XL, "        band.begin(p);\n", ""),
    "tail read": (
        "attention.cu",
        SDPA,
        "const auto is_key = [&](int j) { return j < p.M; };",
        "const auto is_key = [&](int) { return true; };",
    ),
    "tail not hidden": ("softmax.cuh", SDPA, "(M - N) : M)", "(M - N) : M + STEP)"),
    "wrong row of dR": (
        "positions.cuh",
        f"{XL}_grad",
        "to.from(i, column)",
        "to.from(i ^ 1, column)",
    ),
    "rows of dR before they are complete": (
        "gradients.cuh",
        f"{XL}_grad",
        "sync_block();\n            add_position_grads(step, idle)",
        "add_position_grads(step, idle)",
    ),
    "last rows of dR lost": (
        "gradients.cuh",
        f"{LEARNED}_grad",
        "STEP * STEP + OWN : end",
        "STEP * STEP : end",
    ),
    "what an earlier block left in the ring": (
        "positions.cuh",
        f"{XL}_grad",
        "e < OWN * RING; e += THREADS",
        "e < OWN * RING; e += 2 * THREADS",
    ),
    "double scale": (
        "softmax.cuh",
        ALIBI,
        "s = s * scale + slope",
        "s = s * scale * scale + slope",
    ),
    "first block hidden": (
        "attention.cu",
        SDPA,
        "    int step = 0;",
        "    int step = STEP;",
    ),
    "output not rescaled": ("softmax.cuh", ALIBI, "out[j][e] *= fade[e / 2]", "out[j][e] *= 1"),
    "band offset by one": (
        "attention.cu",
        XL,
        "p.first - first - (OWN - 1)",
        "p.first - first - OWN",
    ),
    "hidden values": (
        "softmax.cuh",
        SDPA,
        "return hiding ? seen_by_warp(mine) : ALL_SEEN;",
        "return ALL_SEEN;",
    ),
    "u for w": ("attention.cu", XL, "joined(p.w, h)", "joined(p.u, h)"),
    "delta forgotten": ("softmax.cuh", f"{SDPA}_grad", "p * (d - delta)", "p * d"),
    "dropout in the forward pass alone": (
        "softmax.cuh",
        f"{SDPA}_grad",
        "kept = seen && pairs.kept(i, j)",
        "kept = seen",
    ),
    "fragments swapped": (
        "tiles.cuh",
        SDPA,
        "{{r[0], r[1]},",
        "{{r[1], r[0]},",
    ),
    "one weight for two features": ("additive.cu", ADDITIVE, "-2 * w[1] * x0", "-2 * w[0] * x0"),
    "large projections": ("additive.cu", ADDITIVE, "if (wrong == 0) return;", "return;"),
    "gradients of large projections": (
        "additive.cu",
        f"{ADDITIVE}_grad",
        "if (is_nan(sum.of_row))",
        "if (false)",
    ),
    "tangent's slope": ("additive.cu", f"{ADDITIVE}_grad", "(1 - t * t)", "(1 - t)"),
}


COPIED_FAULTS = {
    "copies without a barrier": (
        "attention.cu",
        SDPA,
        "wait_for_copies();\n            sync_block();",
        "wait_for_copies();",
    ),
    "whole steps too late": (
        "attention.cu",
        ALIBI,
        "first + 1 + (p.M - p.N)",
        "first + OWN + (p.M - p.N)",
    ),
    "whole steps without a scale": (
        "attention.cu",
        SDPA,
        "out[g], p.scale)",
        "out[g], 1)",
    ),
    "rows of the table in the wrong place": (
        "attention.cu",
        XL,
        "copy(band.r, (step + OWN) % COPIED_RING",
        "copy(band.r, step % COPIED_RING",
    ),
    "keys without a barrier": (
        "gradients.cuh",
        f"{SDPA}_grad",
        "sync_block();\n            if (!RELATIVE && step",
        "if (!RELATIVE && step",
    ),
    "queries without a barrier": (
        "gradients.cuh",
        f"{SDPA}_grad",
        "sync_block();\n            if (!RELATIVE && more)",
        "if (!RELATIVE && more)",
    ),
    "next keys too early": (
        "gradients.cuh",
        f"{XL}_grad",
        "if (!RELATIVE) continue;\n            sync_block();",
        "if (!RELATIVE) continue;",
    ),
    "scores of the table before they are complete": (
        "gradients.cuh",
        f"{LEARNED}_grad",
        "low(step), step);\n                sync_block();",
        "low(step), step);",
    ),
    "biases before they are there": (
        "gradients.cuh",
        f"{XL}_grad",
        "joined(p.w, h), p.D);\n            sync_block();",
        "joined(p.w, h), p.D);",
    ),
    "the other bias": (
        "positions.cuh",
        f"{XL}_grad",
        "biases.get_pack(0, column)",
        "biases.get_pack(1, column)",
    ),
    "whole steps of queries too early": (
        "gradients.cuh",
        f"{ALIBI}_grad",
        "first + OWN - 1 - (p.M - p.N)",
        "first - (p.M - p.N)",
    ),
    "the other half's log-sum-exp": (
        "softmax.cuh",
        f"{SDPA}_grad",
        "rows.get(0, at + column)",
        "rows.get(0, column)",
    ),
    "the ring of keys turned the wrong way": (
        "positions.cuh",
        f"{XL}_grad",
        "x + (RING - step % RING)",
        "x + step % RING",
    ),
}
"""In the steps that are copied in the background, which few drawn cases have."""


def planted(fault: str, kernels: Path) -> str:
    """Plant a fault in the sources; the operation that shows it."""
    name, operation, old, new = (FAULTS | COPIED_FAULTS)[fault]
    code = (kernels / name).read_text()
    assert old in code
    (kernels / name).write_text(code.replace(old, new))
    return operation


def caught(implementation: Implementation, dtype: str, most: int = 60) -> tuple[int, str]:
    """After how many cases of the suite a fault shows, and how; 0 if it does not."""
    operation = implementation.operation.name
    anything = (*fixed_cases(operation), *draw_recipes(operation, "any", most, 0))
    hidden = draw_recipes(operation, "nan", most // 4, 0)
    cases: Iterator[Recipe] = (
        recipe for pair in zip(anything, (*hidden, *anything), strict=False) for recipe in pair
    )
    for count, recipe in enumerate(islice(cases, most), 1):
        try:
            judge(implementation, case_of(recipe, dtype))
        except Disagreement as error:
            found = re.search("KernelFault: (.*)", str(error))
            return count, found[1] if found else "by its numbers"
    return 0, ""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault: str, backend: Backend, kernels: Path) -> None:
    operation = planted(fault, kernels)
    count, how = caught(
        named(backend, operation), "float16" if fault == "fragments swapped" else "float32"
    )
    print(f"{fault}: caught after {count} cases, {how}")
    assert count


@pytest.mark.parametrize(
    "fault",
    [
        "missing barrier",
        "next step's keys too early",
        "missing barrier of the warp",
        "unwritten shared memory",
    ],
)
def test_a_fault_of_the_machine_is_caught_in_one_call(
    fault: str, backend: Backend, kernels: Path
) -> None:
    operation = planted(fault, kernels)
    with pytest.raises(KernelFault, match=r"no barrier between|nobody has written"):
        RUNS[operation](*qkv(33, 70))


# What the suite does not draw

RUNS: dict[str, Callable[..., Any]] = {
    SDPA: lambda q, k, v: attention.scaled_dot_product_attention_cuda(
        q, k, v, normal(q.shape[2], k.shape[2], dtype=q.dtype.name)
    ),
    ALIBI: attention.alibi_attention_cuda,
    XL: lambda q, k, v: attention.transformer_xl_attention_cuda(
        q,
        k,
        v,
        *(normal(3, *rest, q.shape[3], dtype=q.dtype.name) for rest in ((k.shape[2],), (), ())),
    ),
}


@pytest.mark.parametrize("operation", RUNS)
def test_any_order_of_threads_gives_the_same_bits(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = qkv(33, 70, dtype="float16")
    first = RUNS[operation](*given)
    assert all(np.array_equal(first, RUNS[operation](*given)) for _ in range(3))


def wide_recipe(operation: str, D: int, E: int) -> Recipe:
    sizes = {"B": 1, "H": 1, "N": 18, "M": 35, "D": D, "E": E}
    if operation.startswith(ADDITIVE):
        sizes = {"B": 1, "N": 18, "M": 35, "E": E, "Q": 5, "K": 3, "A": 34}
    return Recipe(operation, sizes, {"family": "spread", "seed": 1})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("operation", [XL, f"{XL}_grad"])
def test_heads_of_256_are_right(operation: str, dtype: str, backend: Backend) -> None:
    judge(named(backend, operation), case_of(wide_recipe(operation, 200, 256), dtype))


def copied_recipe(operation: str) -> Recipe:
    """Heads whose rows are read 16 bytes at a time, and several steps that need no mask."""
    sizes = {"B": 1, "H": 2, "N": 40, "M": 100, "D": 32, "E": 16}
    learned = operation.startswith(LEARNED)
    sizes |= {"P": 100} if learned else {}
    options = {"align": "end"} if learned else {}
    return Recipe(operation, sizes, {"family": "spread", "seed": 3}, options=options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("grad", ["", "_grad"])
@pytest.mark.parametrize("operation", [SDPA, ALIBI, XL, LEARNED])
def test_steps_that_are_copied_in_the_background_are_right(
    operation: str, grad: str, dtype: str, backend: Backend
) -> None:
    judge(named(backend, operation + grad), case_of(copied_recipe(operation + grad), dtype))


@pytest.mark.parametrize("fault", COPIED_FAULTS)
def test_a_fault_of_the_copied_steps_is_caught(fault: str, backend: Backend, kernels: Path) -> None:
    operation = planted(fault, kernels)
    with pytest.raises(Disagreement):
        judge(named(backend, operation), case_of(copied_recipe(operation), "float32"))


LAYOUTS: dict[str, Callable[[ndarray], ndarray]] = {
    "heads last": lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "sequence first": lambda x: np.ascontiguousarray(x.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3),
    "backwards": lambda x: np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1],
    "every second": lambda x: np.repeat(x, 2, axis=3)[..., ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_are_followed(layout: str) -> None:
    given = qkv(18, 35, 16, 8)
    strange = [LAYOUTS[layout](x) for x in given]
    assert any(x.strides != y.strides for x, y in zip(given, strange, strict=True))
    assert np.array_equal(RUNS[XL](*given), RUNS[XL](*strange))


@pytest.mark.parametrize(
    "made",
    [
        kernel_configs.Instance("attention.cu", "half", 64, 64, 64, True, masked)
        for masked in (False, True)
    ],
)
def test_the_blocks_of_a_gpu_are_right(
    made: kernel_configs.Instance, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "instance", lambda source, *_: replace(made, source=source))
    sizes = {"B": 2, "H": 3, "N": 70, "M": 90, "D": 33, "E": 40}
    verdict = judge(
        named(backend, XL), case_of(Recipe(XL, sizes, {"family": "spread", "seed": 1}), "float16")
    )
    assert verdict.judged and verdict.discriminating


@pytest.mark.parametrize("operation", [SDPA, ALIBI])
@pytest.mark.parametrize("M", [90, 192])
def test_two_groups_of_a_warp_are_right(
    M: int, operation: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel_configs.Instance("attention.cu", "half", 64, 64, 64, False, False)
    assert (made.rows("forward"), made.rows("backward_query"), made.threads) == (128, 64, 128)
    monkeypatch.setattr(attention, "instance", lambda source, *_: replace(made, source=source))
    sizes = {"B": 1, "H": 2, "N": 150, "M": M, "D": 32, "E": 16}
    recipe = Recipe(operation, sizes, {"family": "spread", "seed": 1})
    verdict = judge(named(backend, operation), case_of(recipe, "float16"))
    assert verdict.judged and verdict.discriminating


@pytest.mark.parametrize("wrong", ["float64", "mixed", "wide", "mask"])
def test_what_is_not_supported_says_so(wrong: str) -> None:
    query, key, value = qkv(
        D=257 if wrong == "wide" else 4, dtype="float64" if wrong == "float64" else "float32"
    )
    value = value.astype("float16") if wrong == "mixed" else value
    mask = normal(5, 19, dtype="float16") if wrong == "mask" else None
    with pytest.raises(NotImplementedError, match=r"float64|dtypes|wider"):
        attention.scaled_dot_product_attention_cuda(query, key, value, mask)


@pytest.mark.parametrize("long", ["query", "key"])
def test_more_rows_than_a_grid_has_room_for_are_refused_before_anything_runs(
    long: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "launch", None)
    monkeypatch.setattr(additive, "launch", None)
    many, one = np.zeros((1, 65535 * 16 + 1, 1), "float32"), np.zeros((1, 1, 1), "float32")
    query, key = (many, one) if long == "query" else (one, many)
    for call in (
        lambda: attention.scaled_dot_product_attention_grad_cuda(
            query[None], query[None], key[None], key[None]
        ),
        lambda: additive.additive_attention_cuda(query, key, key, one[0], one[0], one[0, 0]),
    ):
        with pytest.raises(NotImplementedError, match="more than 1048560 queries or keys"):
            call()


def test_without_a_compiler_it_says_so(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NotImplementedError, match=r"no GPU, and no g\+\+"):
        attention.alibi_attention_cuda(*qkv())


def test_a_kernel_is_compiled_once_for_all_processes(kernels: Path, tmp_path: Path) -> None:
    attention.alibi_attention_cuda(*qkv())
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "cupy_impl").iterdir()}
    assert len(made) == 2  # what repairs the output is another source
    compile_and_run.library.cache_clear()
    attention.alibi_attention_cuda(*qkv())
    now = {path: path.stat().st_mtime_ns for path in (tmp_path / "cupy_impl").iterdir()}
    assert now == made


def test_fibers_of_the_c_library_give_the_same(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = attention.alibi_attention_cuda(*qkv(33, 70))
    compile_and_run.library.cache_clear()
    monkeypatch.setattr(
        compile_and_run, "OPTIONS", (*compile_and_run.OPTIONS, "-DFIBERS_BY_UCONTEXT")
    )
    assert np.array_equal(attention.alibi_attention_cuda(*qkv(33, 70)), expected)


# Memory

MEASURED: dict[str, Callable[[int], Any]] = {
    XL: lambda N: attention.transformer_xl_attention_grad_cuda(
        normal(2, 3, N, 16), *qkv(N, N, 16, 16), normal(3, N, 16), normal(3, 16), normal(3, 16)
    ),
    ADDITIVE: lambda N: additive.additive_attention_grad_cuda(
        normal(1, N, 8),
        normal(1, N, 4),
        normal(1, N, 5),
        normal(1, N, 8),
        normal(6, 4),
        normal(6, 5),
        normal(6),
    ),
}


@pytest.mark.parametrize("operation", MEASURED)
def test_memory_grows_like_the_lengths(operation: str) -> None:
    def allocated(N: int) -> int:
        tracemalloc.start()
        MEASURED[operation](N)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    MEASURED[operation](8)
    slope = math.log(allocated(512) / allocated(128)) / math.log(4)
    print(f"{operation}: slope {slope:.3f}")
    assert 0.5 < slope <= 1.05


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("element", ["float", "half"])
def test_blocks_ask_for_the_shared_memory_that_they_use(
    element: str, relative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: dict[str, list[int]] = {}

    def run(
        made: kernel_configs.Instance,
        kernel: str,
        grid: tuple[int, int],
        params: bytes,
        on_device: bool,
    ) -> None:
        used[kernel] = [
            compile_and_run.launch(made, kernel, grid, params),
            made.shared_bytes(kernel),
        ]

    monkeypatch.setattr(attention, "launch", run)
    monkeypatch.setattr(additive, "launch", run)
    dtype = {"float": "float32", "half": "float16"}[element]
    if relative:
        tables = normal(3, 19, 7, dtype=dtype), normal(3, 7, dtype=dtype), normal(3, 7, dtype=dtype)
        attention.transformer_xl_attention_grad_cuda(
            normal(2, 3, 5, 3, dtype=dtype), *qkv(dtype=dtype), *tables
        )
    else:
        attention.alibi_attention_grad_cuda(normal(2, 3, 5, 3, dtype=dtype), *qkv(dtype=dtype))
        shapes = (1, 5, 8), (1, 5, 4), (1, 6, 5), (1, 6, 8), (6, 4), (6, 5), (6,)
        additive.additive_attention_grad_cuda(*(normal(*shape, dtype=dtype) for shape in shapes))
    assert used.pop("repair") == [0, 0]
    assert len(used) == (3 if relative else 6) and all(
        taken == given for taken, given in used.values()
    )


# What a GPU would be given


def test_a_gpu_is_given_the_whole_source_and_the_parameters_by_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[Any] = []

    class Function:
        def __call__(self, *args: Any, **options: Any) -> None:
            calls.append((args, options))

    def compile_source(source: str, options: tuple[str, ...]) -> bytes:
        calls.append((source, options))
        return b"binary"

    def module(path: str) -> Any:
        assert Path(path).read_bytes() == b"binary" and Path(path).parent == tmp_path
        return SimpleNamespace(get_function=lambda name: function)

    function, device = Function(), SimpleNamespace(id=0, compute_capability="90")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(launch, "compile_source", compile_source)
    monkeypatch.setattr(launch.cupy, "RawModule", module)
    monkeypatch.setattr(launch.cupy.cuda, "Device", lambda *number: device)
    made = kernel_configs.instance("attention.cu", "bfloat16", 64, True, False, True)
    for _ in range(2):  # the second time the binary is there
        launch.compiled.cache_clear()
        launch.launch(made, "forward", (6, 1), bytes(24), True)
    launch.compiled.cache_clear()
    (code, options), (args, given), again = calls
    assert "KERNEL(forward)" in code and "#define KERNEL" in code and '#include "' not in code
    assert "-DELEMENT=bfloat16" in options and "-DMASKED=0" in options and "-arch=sm_90" in options
    assert args[:2] == again[0][:2] == ((6, 1), (128,)) and args[2][0].tobytes() == bytes(24)
    assert (
        given["shared_mem"]
        == function.max_dynamic_shared_size_bytes
        == made.shared_bytes("forward")
        > 48 * 1024
    )


def test_a_folder_that_cannot_be_written_to_costs_a_compilation(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept = launch.keep(b"binary", tmp_path / "file" / "a.cubin")
    assert kept.read_bytes() == b"binary" and kept.name == "a.cubin"


def test_a_source_that_does_not_compile_is_told_in_the_compilers_words() -> None:
    with pytest.raises(ValueError, match='identifier "x" is undefined'):
        launch.compile_source("x y;", ("-arch=sm_90",))


SUM = 'extern "C" __global__ void sum(float* x) { x[0] = x[0] * x[1] + x[2]; }'


def test_a_gpu_keeps_subnormal_numbers() -> None:
    """The options are the launcher's; the one that CuPy would add makes subnormals zero."""
    made = kernel_configs.instance("additive.cu", "float32", 64, False, False, True)
    given = ("-arch=compute_90", *launch.options(made))
    ours, cupys = (compile_text(SUM, options)[0] for options in (given, (*given, "-ftz=true")))
    assert ".f32" in ours and ".ftz" not in ours and ".ftz" in cupys


def test_nothing_is_compiled_before_it_is_needed() -> None:
    code = (
        "import sys, attnverify.cupy_impl.cuda.attention as c; "
        "sys.exit(bool(c.launch.__globals__['compile_and_run'].library.cache_info().currsize))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=ROOT,
            env=os.environ,
        ).returncode
        == 0
    )


WHO_IS_IT = """
extern "C" __global__ void who_is_it(int* in_turn, int* last_first)
{
    const int at = 2 * (blockIdx.y * gridDim.x + blockIdx.x);
    in_turn[at] = last_first[at] = block_head();
    in_turn[at + 1] = block_rows(), last_first[at + 1] = last_block_rows();
}
"""


def test_blocks_in_cuda_that_run_side_by_side_take_the_rows_of_one_head() -> None:
    """In the order in which a GPU starts them; of heads first, each wave would read all keys."""
    in_turn = [[head, block] for head in range(3) for block in range(4)]
    last_first = [[head, block] for head in range(3) for block in reversed(range(4))]
    module = compile_source(source.text("device.cuh") + WHO_IS_IT, ("-std=c++17",), target=90)
    found = np.zeros((2, 12, 2), np.int32)
    module["who_is_it"].launch((3, 4), 1, [found[0], found[1]])
    assert found.tolist() == [in_turn, last_first]
