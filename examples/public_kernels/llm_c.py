"""
dev/cuda/attention_forward.cu of karpathy/llm.c (MIT), seen at f1e2ace: versions 1 (three kernels)
and 2 (adapted from flash-attention-minimal, causal) of its causal attention, in float32.

    git clone https://github.com/karpathy/llm.c $PUBLIC_KERNELS/llm.c
    attnverify run examples/public_kernels/llm_c.py --profile quick

Adapted: the kernels are cut out of the file, whose rest is a program for cuBLAS, and launched as
``attention_forward1`` and ``attention_forward2`` launch them; version 1 takes query, key and value
in one array. Version 2 reads its last tile whole: ``_flash_padded`` gives it whole tiles.
"""

import sys
from pathlib import Path

import cupy as cp

sys.path.append(str(Path(__file__).parent))
from checkouts import between, read

DTYPES = ("float32",)
FEATURES = {"N != M": False, "E != D": False, "mask": "causal", "dropout": False}
ARGUMENTS = {"causal": "causal mask"}
FLUSHED = dict.fromkeys(("storage", "acc", "score", "softmax", "prob"), "float32_ftz")
PRECISION = {"float32": {"preset": "fused", **FLUSHED}}  # CuPy compiles with -ftz=true
TILE, BLOCK = 32, 256

TEXT = read("llm.c", "dev/cuda/attention_forward.cu")
HEAD = """
#define INFINITY __int_as_float(0x7f800000)
#define FLT_MAX 3.402823466e+38F
extern "C" {
"""
PARTS = (
    ("__global__ void attention_query_key_kernel1", "// warp-level reduction"),
    ("__global__ void attention_value_kernel1", "__global__ void permute_kernel"),
)
kernels = cp.RawModule(code=HEAD + "".join(between(TEXT, *part) for part in PARTS) + "}")


def scaled_dot_product_attention(query, key, value, causal=False):
    """Version 1."""
    B, H, N, D = query.shape
    refuse_others(causal, D)
    packed = cp.stack([x.transpose(0, 2, 1, 3) for x in (query, key, value)], axis=2)
    packed = cp.ascontiguousarray(packed.reshape(B, N, 3 * H * D))
    score, weights = (cp.zeros((B, H, N, N), cp.float32) for _ in range(2))
    output = cp.zeros((B, N, H, D), cp.float32)
    all_, rows = (-(-x // BLOCK) for x in (B * H * N * N, B * H * N))
    B, H, N, C = (cp.int32(x) for x in (B, H, N, H * D))
    first = score, packed, B, N, C, H
    kernels.get_function("attention_query_key_kernel1")((all_,), (BLOCK,), first)
    second = weights, score, B, N, H
    kernels.get_function("attention_softmax_kernel1")((rows,), (BLOCK,), second)
    third = output, weights, packed, B, N, C, H
    kernels.get_function("attention_value_kernel1")((rows,), (BLOCK,), third)
    return output.transpose(0, 2, 1, 3)


def scaled_dot_product_attention_flash(query, key, value, causal=False):
    """Version 2."""
    B, H, N, D = query.shape
    refuse_others(causal, D)
    query, key, value = map(cp.ascontiguousarray, (query, key, value))
    tiles = -(-N // TILE)
    output = cp.zeros_like(query)
    total = cp.zeros((B, H, N), cp.float32)
    top = cp.full((B, H, N), -cp.inf, cp.float32)
    sizes = (cp.int32(x) for x in (N, D, tiles, tiles, TILE, TILE))
    arguments = (query, key, value, *sizes, cp.float32(D**-0.5), total, top, output)
    shared = (3 * TILE * D + TILE * TILE) * 4
    kernels.get_function("attention_forward_kernel2")((B, H), (TILE,), arguments, shared_mem=shared)
    return output


def scaled_dot_product_attention_flash_padded(query, key, value, causal=False):
    """Version 2 in whole tiles: zeros behind the last key, which no query sees."""
    N = query.shape[-2]
    pad = [(0, 0), (0, 0), (0, -N % TILE), (0, 0)]
    query, key, value = (cp.pad(x, pad) for x in (query, key, value))
    return scaled_dot_product_attention_flash(query, key, value, causal)[:, :, :N]


def refuse_others(causal, width):
    if not causal or (3 * TILE * width + TILE * TILE) * 4 > 49152:
        raise NotImplementedError("causal alone, heads that fit into 48 KiB of shared memory")
