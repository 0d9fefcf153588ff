"""
triton_decode_attention.py of vllm-project/vllm (Apache-2.0), seen in 0.33.0: decoding over pages,
each sequence in two parts that are merged, with groups and a cap.

    git clone https://github.com/vllm-project/vllm $PUBLIC_KERNELS/vllm && pip install regex
    attnverify run examples/public_kernels/vllm_decode.py --profile quick

or, with nothing but the wheel, ``pip install --no-deps --target $PUBLIC_KERNELS/vllm vllm regex``:
a checkout must be installed as well, for without a version to be found it drops Triton.
Adapted: every row is given as a sequence of its own, rows without a key are left at 0, and
integers are of 32 bits.
"""

import os
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent))
from checkouts import checkout

sys.path.append(str(checkout("vllm")))
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # else, without a GPU, it drops Triton
from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

TARGET = "sm_90a"
DTYPES = ("float16", "bfloat16")
PRECISION = {"float16": {"step": "float16"}, "bfloat16": {"step": "bfloat16"}}
FEATURES = {"gradient": False, "width": (16, 32, 64, 128)}


def paged_attention(
    q, k_cache, v_cache, block_table, seqused_k, cu_seqlens_q, causal=False, softcap=0.0,
    softmax_scale=None,
):  # fmt: skip
    out = q.new_zeros(*q.shape[:2], v_cache.shape[-1])
    lse = torch.full(q.shape[:2], -torch.inf)
    rows, ends = cu_seqlens_q.tolist(), seqused_k.tolist()
    own = [
        (t, b, ends[b] - (rows[b + 1] - 1 - t) * causal)
        for b in range(len(ends))
        for t in range(rows[b], rows[b + 1])
    ]
    own = [each for each in own if each[2] > 0]
    if own:
        at, of, keys = (list(x) for x in zip(*own, strict=True))
        found, its = out[at].contiguous(), lse[at].contiguous()
        parts = torch.zeros(*found.shape[:2], 2, found.shape[2] + 1)
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        decode_attention_fwd(
            q[at].contiguous(), k_cache.contiguous(), v_cache.contiguous(), found, its,
            block_table[of].int(), torch.tensor(keys, dtype=torch.int32), parts, 2, scale,
            k_cache.shape[1], softcap,
        )  # fmt: skip
        out[at], lse[at] = found, its
    return out, lse
