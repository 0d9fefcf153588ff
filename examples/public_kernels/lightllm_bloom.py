"""
lightllm/models/bloom/triton_kernel/context_flashattention_nopad.py of ModelTC/lightllm
(Apache-2.0), seen at fc72ffa: prefill with ALiBi, keys and values in a cache, forward alone.

    git clone https://github.com/ModelTC/lightllm $PUBLIC_KERNELS/lightllm
    attnverify run examples/public_kernels/lightllm_bloom.py --profile quick

Adapted: nothing in the file; batches are packed as for lightllm_llama.py, and the slopes are given.
"""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent))
from checkouts import alibi_slopes, load

TARGET = "sm_90a"
DTYPES = ("float16", "bfloat16")
LAYOUT = "BNHD"
FEATURES = {"gradient": False, "mask": False, "E != D": False, "width": (16, 32, 64, 128)}
PRECISION = "fused"

kernels = load("lightllm", "lightllm/models/bloom/triton_kernel/context_flashattention_nopad.py")


def alibi_attention(query, key, value):
    (B, N, H, D), M = query.shape, key.shape[1]
    if N > M:
        raise NotImplementedError("at most as many queries as keys")
    place = torch.arange(B * M, dtype=torch.int32).flip(0).reshape(B, M)
    cache = [torch.empty(B * M, H, D, dtype=key.dtype) for _ in range(2)]
    for kept, x in zip(cache, (key, value), strict=True):
        kept[place.flatten()] = x.reshape(B * M, H, D)
    output = torch.empty(B * N, H, D, dtype=query.dtype)
    kernels.context_attention_fwd(
        query.reshape(B * N, H, D),
        *cache,
        output,
        torch.arange(B, dtype=torch.int32),
        torch.tensor(alibi_slopes(H), dtype=torch.float32),
        torch.arange(B, dtype=torch.int32) * N,
        torch.full((B,), M, dtype=torch.int32),
        torch.full((B,), M - N, dtype=torch.int32),
        N,
        place,
    )
    return output.reshape(B, N, H, D)
