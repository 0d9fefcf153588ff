"""
include/flashinfer/attention/cascade.cuh of flashinfer-ai/flashinfer (Apache-2.0), seen at fb28d72:
attentions over disjoint keys merged into one in CUDA C++, any number of them or two.

    git clone https://github.com/flashinfer-ai/flashinfer $PUBLIC_KERNELS/flashinfer
    attnverify run examples/public_kernels/flashinfer_cascade.py --profile quick

Adapted: the two kernels are cut out of the file, whose rest is not for NVRTC, and three headers of
theirs stand before them, with CUDA's ``type_traits`` and the host's ``ushort``. They are launched
as ``MergeState`` and ``MergeStates`` do; a thread has four channels. An lse is of base 2 there.
"""

import sys
from pathlib import Path

import cupy as cp

sys.path.append(str(Path(__file__).parent))
from checkouts import between, read

DTYPES = ("float32", "float16")
LSE_BASE = 2
FEATURES = {"gradient": False}
FLUSHED = dict.fromkeys(("storage", "acc", "score", "softmax", "prob"), "float32_ftz")
PRECISION = {"float32": {"preset": "fused", **FLUSHED}}  # CuPy compiles with -ftz=true

INCLUDE = "include/flashinfer/"
TRAITS = "#include <cuda/std/type_traits>\nnamespace std { using namespace cuda::std; }"
BEFORE = (
    read("flashinfer", INCLUDE + "math.cuh"),
    read("flashinfer", INCLUDE + "vec_dtypes.cuh", ("#include <type_traits>", TRAITS)),
    read("flashinfer", INCLUDE + "attention/state.cuh", ('#include "../', "// ")),
)
TEXT = read("flashinfer", INCLUDE + "attention/cascade.cuh")
START = "template <uint32_t vec_size, typename DTypeIn, typename DTypeO>\n__global__ void {}Kernel("
END = "/*!\n * \\brief The CUDA kernel that merges "
PARTS = (
    ("MergeState", END + "the self-attention state with"),
    ("MergeStates", END + "self-attention states of a list"),
)
KERNELS = "".join(between(TEXT, START.format(name), end) for name, end in PARTS)
CODE = "\n".join(("typedef unsigned short ushort;", *BEFORE, f"namespace flashinfer {{{KERNELS}}}"))
NAMES = {
    (name, dtype): f"flashinfer::{name}Kernel<4, {ctype}, {ctype}>"
    for name, _ in PARTS
    for dtype, ctype in (("float32", "float"), ("float16", "half"))
}
module = cp.RawModule(
    code=CODE,
    options=("-std=c++17",),
    name_expressions=list(NAMES.values()),
)


def merge_attention_states(outputs, lses):
    C, B, H, N, E = outputs.shape
    v = cp.ascontiguousarray(outputs.transpose(1, 3, 0, 2, 4).reshape(B * N, C, H, E))
    s = cp.ascontiguousarray(lses.transpose(1, 3, 0, 2).reshape(B * N, C, H))
    return launch("MergeStates", (v, s), outputs.shape, (cp.uint32(C),))


def merge_attention_state(outputs, lses):
    C, B, H, N, E = outputs.shape
    if C != 2:
        raise NotImplementedError("two parts")
    v = cp.ascontiguousarray(outputs.transpose(0, 1, 3, 2, 4).reshape(2, B * N, H, E))
    s = cp.ascontiguousarray(lses.transpose(0, 1, 3, 2).reshape(2, B * N, H))
    return launch("MergeState", (v[0], s[0], v[1], s[1]), outputs.shape, ())


def launch(name, given, shape, numbers):
    C, B, H, N, E = shape
    if E % 4 or E * H > 4096:
        raise NotImplementedError("a multiple of four channels, all heads in a block")
    out, lse = cp.empty((B * N, H, E), given[0].dtype), cp.empty((B * N, H), cp.float32)
    kernel = module.get_function(NAMES[name, str(out.dtype)])
    kernel((B * N,), (E // 4, H), (*given, out, lse, *numbers, cp.uint32(H), cp.uint32(E)))
    return out.reshape(B, N, H, E).transpose(0, 2, 1, 3), lse.reshape(B, N, H).transpose(0, 2, 1)
