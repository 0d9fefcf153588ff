"""
flash.cu of tspeterkim/flash-attention-minimal (Apache-2.0), seen at 00f8f46: a forward pass in a
hundred lines of CUDA C++, in float32.

    git clone https://github.com/tspeterkim/flash-attention-minimal \
        $PUBLIC_KERNELS/flash-attention-minimal
    attnverify run examples/public_kernels/flash_attention_minimal.py --profile quick

Adapted: the kernel is cut out of the file, and launched as its ``forward`` launches it. It has
no tail: ``_padded`` fills the last tile of 32, and hides what it added by one more feature.
"""

import sys
from pathlib import Path

import cupy as cp

sys.path.append(str(Path(__file__).parent))
from checkouts import between, read

DTYPES = ("float32",)
FEATURES = {"N != M": False, "E != D": False, "mask": False, "dropout": False}
FLUSHED = dict.fromkeys(("storage", "acc", "score", "softmax", "prob"), "float32_ftz")
PRECISION = {"float32": {"preset": "fused", **FLUSHED}}  # CuPy compiles with -ftz=true
TILE = 32

SOURCE = between(read("flash-attention-minimal", "flash.cu"), "__global__", "torch::Tensor forward")
kernel = cp.RawKernel(
    '#define INFINITY __int_as_float(0x7f800000)\nextern "C" ' + SOURCE, "forward_kernel"
)


def scaled_dot_product_attention(query, key, value):
    return forward(query, key, value, query.shape[-1] ** -0.5)


def scaled_dot_product_attention_padded(query, key, value):
    N, D = query.shape[-2:]
    pad = [(0, 0), (0, 0), (0, -N % TILE), (0, 1)]
    scale = D**-0.5
    query, key, value = (cp.pad(x, pad) for x in (query, key, value))
    query[..., D] = 1
    key[..., N:, D] = -1e30
    return forward(query, key, value, scale)[:, :, :N, :D]


def forward(query, key, value, scale):
    query, key, value = map(cp.ascontiguousarray, (query, key, value))
    B, H, N, D = query.shape
    tiles = -(-N // TILE)
    output = cp.zeros_like(query)
    total = cp.zeros((B, H, N), cp.float32)
    top = cp.full((B, H, N), -cp.inf, cp.float32)
    shared = (3 * TILE * D + TILE * TILE) * 4
    if shared > 49152:
        raise NotImplementedError("heads that do not fit into 48 KiB of shared memory")
    sizes = (cp.int32(x) for x in (N, D, tiles, tiles, TILE, TILE))
    arguments = (query, key, value, *sizes, cp.float32(scale), total, top, output)
    kernel((B, H), (TILE,), arguments, shared_mem=shared)
    return output
