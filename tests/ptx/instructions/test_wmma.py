"""
``wmma`` through CUDA C++: products of fragments equal those of matrices, whatever the layouts, and
every element may be changed where it lies.
"""

from contextlib import nullcontext

import ml_dtypes
import numpy as np
import pytest

from attnverify import ptx
from attnverify.ptx.launchers.nvrtc import compile_source

SOURCE = r"""
#include <mma.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
using namespace nvcuda;
extern "C" __global__ void k(const IN *a, const IN *b, const OUT *c, OUT *d, int lda, int ldb,
                             int ldc) {
  wmma::fragment<wmma::matrix_a, M, N, K, KIND, wmma::LA> fa;
  wmma::fragment<wmma::matrix_b, M, N, K, KIND, wmma::LB> fb;
  wmma::fragment<wmma::accumulator, M, N, K, OUT> fc;
  wmma::load_matrix_sync(fa, a, lda);
  wmma::load_matrix_sync(fb, b, ldb);
  wmma::load_matrix_sync(fc, c, ldc, wmma::mem_LC);
  wmma::mma_sync(fc, fa, fb, fc);
  for (int i = 0; i < fc.num_elements; i++) fc.x[i] = fc.x[i] * (OUT)2;
  wmma::store_matrix_sync(d, fc, ldc, wmma::mem_LC);
}
"""
BF16 = ml_dtypes.bfloat16
KINDS = {
    "half": ("half", "half", np.float16),
    "bf16": ("__nv_bfloat16", "__nv_bfloat16", BF16),
    "tf32": ("float", "wmma::precision::tf32", np.float32),
    "s8": ("signed char", "signed char", np.int8),
    "u8": ("unsigned char", "unsigned char", np.uint8),
    "f64": ("double", "double", np.float64),
}
SHAPES = {"tf32": [(16, 16, 8)], "f64": [(8, 8, 4)]}
USUAL = [(16, 16, 16), (32, 8, 16), (8, 32, 16)]
CASES = [
    (kind, out, shape)
    for kind, out in (
        *(("half", "float"), ("half", "half"), ("bf16", "float"), ("tf32", "float")),
        *(("s8", "int"), ("u8", "int"), ("f64", "double")),
    )
    for shape in SHAPES.get(kind, USUAL)
]
OUT = {"float": np.float32, "half": np.float16, "int": np.int32, "double": np.float64}


def laid_out(x: np.ndarray, layout: str, lead: int) -> np.ndarray:
    """In rows, or columns, of so many numbers."""
    x = x if layout == "row_major" else x.T
    room = np.zeros((len(x), lead), x.dtype)
    room[:, : x.shape[1]] = x
    return room


@pytest.mark.parametrize(("kind", "out", "shape"), CASES)
@pytest.mark.parametrize("layouts", ["row row row", "col row col", "row col row", "col col col"])
def test_a_product_of_fragments_is_that_of_the_matrices(
    kind: str, out: str, shape: tuple[int, int, int], layouts: str
) -> None:
    """Whole numbers, so that no sum rounds: any order gives the same."""
    m, n, k = shape
    of_memory, of_fragment, dtype = KINDS[kind]
    random, least = np.random.default_rng(m + k), 0 if kind == "u8" else -7
    a, b = random.integers(least, 8, (m, k)), random.integers(least, 8, (k, n))
    c = random.integers(-9, 9, (m, n))
    first, second, third = (f"{each}_major" for each in layouts.split())
    names = {"M": m, "N": n, "K": k, "IN": of_memory, "KIND": of_fragment, "OUT": out}
    source = SOURCE.replace("LA", first).replace("LB", second).replace("mem_LC", f"mem_{third}")
    given = [f"-D{name}={text}" for name, text in names.items()]
    x, y, z = (
        laid_out(each.astype(of), layout, 48)
        for each, layout, of in ((a, first, dtype), (b, second, dtype), (c, third, OUT[out]))
    )
    d = np.zeros_like(z)
    kernel = compile_source(source, given, target=80)["k"]
    kernel.launch(1, 32, [x, y, z, d, 48, 48, 48])
    wanted = laid_out(((a @ b + c) * 2).astype(OUT[out]), third, 48)
    np.testing.assert_array_equal(d, wanted)


WHOLE = ["-DM=16", "-DN=16", "-DK=16", "-DIN=half", "-DKIND=half", "-DOUT=float"]


def launch_plainly(threads: int = 32, lead: int = 16, away: int = 0) -> None:
    source = SOURCE.replace("LA", "row_major").replace("LB", "col_major")
    source = source.replace("mem_LC", "mem_row_major")
    x, y = np.ones((40, 40), np.float16), np.ones((40, 40), np.float32)
    kernel = compile_source(source, WHOLE, target=80)["k"]
    kernel.launch(1, threads, [x.reshape(-1)[away:], x, y, y.copy(), lead, lead, lead])


def test_a_matrix_begins_at_a_multiple_of_32_bytes() -> None:
    with pytest.raises(ptx.Finding, match="misaligned: a matrix begins at a multiple of 32"):
        launch_plainly(away=8)
    with pytest.raises(ptx.Finding, match="misaligned"):
        launch_plainly(lead=20)


def test_a_matrix_that_leaves_its_array_is_out_of_bounds() -> None:
    with pytest.raises(ptx.Finding, match="out of bounds"):
        launch_plainly(lead=128)


def test_a_fragment_is_of_a_whole_warp() -> None:
    with pytest.raises(ptx.Finding, match=r"partial warp: wmma\.load"):
        launch_plainly(threads=20)


def test_sums_of_bytes_wrap_or_saturate() -> None:
    text = """.version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 o) {
    .reg .b32 %r<40>; .reg .b64 %d<2>; ld.param.u64 %d0, [o];
    mov.b32 %r1, 0x7f7f7f7f; mov.b32 %r2, 0x7fffffff;
    wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.s8.s32HOW
      {%r10,%r11,%r12,%r13,%r14,%r15,%r16,%r17}, {%r1,%r1}, {%r1,%r1},
      {%r2,%r2,%r2,%r2,%r2,%r2,%r2,%r2};
    wmma.store.d.sync.aligned.row.m16n16k16.global.s32
      [%d0], {%r10,%r11,%r12,%r13,%r14,%r15,%r16,%r17};
    ret; }"""
    for how, wanted in ((".satfinite", 2**31 - 1), ("", 16 * 127**2 - 2**31 - 1)):
        out = np.zeros(256, np.int32)
        ptx.load(text.replace("HOW", how))["k"].launch(1, 32, [out])
        assert (out == wanted).all()


@pytest.mark.parametrize(("away", "wrong"), [(8, False), (16, False), (4, True)])
def test_a_matrix_of_bytes_begins_where_a_fragment_may(away: int, wrong: bool) -> None:
    """Two registers of a thread hold its part of 16 x 16 bytes."""
    source = SOURCE.replace("LA", "row_major").replace("LB", "col_major")
    source = source.replace("mem_LC", "mem_row_major")
    kinds = ["-DM=16", "-DN=16", "-DK=16", "-DIN=signed char", "-DKIND=signed char", "-DOUT=int"]
    x, y = np.ones((40, 40), np.int8), np.ones((40, 40), np.int32)
    kernel = compile_source(source, kinds, target=80)["k"]
    given = [x.reshape(-1)[away:], x, y, y.copy(), 16, 16, 16]
    with pytest.raises(ptx.Finding, match="multiple of 8") if wrong else nullcontext():
        kernel.launch(1, 32, given)
