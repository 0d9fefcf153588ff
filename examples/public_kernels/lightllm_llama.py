"""
lightllm/models/llama/triton_kernel/context_flashattention_nopad.py of ModelTC/lightllm
(Apache-2.0), seen at fc72ffa: prefill with keys and values in a cache, causal, forward alone.

    git clone https://github.com/ModelTC/lightllm $PUBLIC_KERNELS/lightllm
    attnverify run examples/public_kernels/lightllm_llama.py --profile quick

Adapted: the question whether the GPU is a Tesla is answered here (no); batches are packed one
behind the other, keys and values into a cache in an order of its own; N queries behind M keys are
N new tokens behind M - N cached ones.
"""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent))
from checkouts import load

TARGET = "sm_90a"
DTYPES = ("float16", "bfloat16")
LAYOUT = "BNHD"
WIDTHS = (16, 32, 64, 128)
FEATURES = {"gradient": False, "E != D": False, "dropout": False, "mask": "causal", "width": WIDTHS}
ARGUMENTS = {"causal": "causal mask"}
PRECISION = "fused"

kernels = load(
    "lightllm",
    "lightllm/models/llama/triton_kernel/context_flashattention_nopad.py",
    ("from lightllm.utils.device_utils import is_tesla", "is_tesla = bool"),
)


def scaled_dot_product_attention(query, key, value, causal=False):
    (B, N, H, D), M = query.shape, key.shape[1]
    if not causal or N > M:
        raise NotImplementedError("causal alone, at most as many queries as keys")
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
        torch.arange(B, dtype=torch.int32) * N,
        torch.full((B,), M, dtype=torch.int32),
        torch.full((B,), M - N, dtype=torch.int32),
        N,
        place,
    )
    return output.reshape(B, N, H, D)


def scaled_dot_product_attention_no_prompt_cache(query, key, value, causal=False):
    (B, N, H, D), M = query.shape, key.shape[1]
    if not causal or N != M:
        raise NotImplementedError("causal alone, as many queries as keys")
    output = torch.empty(B * N, H, D, dtype=query.dtype)
    kernels.context_attention_fwd_no_prompt_cache(
        *(x.reshape(B * N, H, D) for x in (query, key, value)),
        output,
        torch.arange(B, dtype=torch.int32) * N,
        torch.full((B,), N, dtype=torch.int32),
        N,
    )
    return output.reshape(B, N, H, D)
