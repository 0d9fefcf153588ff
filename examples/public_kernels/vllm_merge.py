"""
triton_merge_attn_states.py of vllm-project/vllm (Apache-2.0), seen in 0.33.0: attentions over the
prefix and the suffix of a prompt merged into one.

    git clone https://github.com/vllm-project/vllm $PUBLIC_KERNELS/vllm && pip install regex
    attnverify run examples/public_kernels/vllm_merge.py --profile quick

or, with nothing but the wheel, ``pip install --no-deps --target $PUBLIC_KERNELS/vllm vllm regex``:
a checkout must be installed as well, for without a version to be found it drops Triton.
Adapted: batch and rows are one axis of tokens, behind which the heads stand; two parts alone.
"""

import os
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent))
from checkouts import checkout

sys.path.append(str(checkout("vllm")))
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # else, without a GPU, it drops Triton
from vllm.v1.attention.ops.triton_merge_attn_states import merge_attn_states

TARGET = "sm_90a"
DTYPES = ("float32", "float16", "bfloat16")
FEATURES = {"gradient": False}


def merge_attention(outputs, lses):
    C, B, H, N, E = outputs.shape
    if C != 2:
        raise NotImplementedError("two parts")
    v = outputs.permute(0, 1, 3, 2, 4).reshape(2, B * N, H, E).contiguous()
    s = lses.permute(0, 2, 1, 3).reshape(2, H, B * N).contiguous()
    out, lse = torch.empty_like(v[0]), torch.empty_like(s[0])
    merge_attn_states(out, v[0], s[0], v[1], s[1], lse)
    return out.unflatten(0, (B, N)).transpose(1, 2), lse.unflatten(1, (B, N)).transpose(0, 1)
