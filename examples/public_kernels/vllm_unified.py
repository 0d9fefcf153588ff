"""
triton_unified_attention.py of vllm-project/vllm (Apache-2.0), seen in 0.33.0: attention over pages
for prompts and decoding alike, with groups, windows, a cap and sinks; called as its backend does.

    git clone https://github.com/vllm-project/vllm $PUBLIC_KERNELS/vllm && pip install regex
    attnverify run examples/public_kernels/vllm_unified.py --profile quick --dtype float16

or, with nothing but the wheel, ``pip install --no-deps --target $PUBLIC_KERNELS/vllm vllm regex``:
a checkout must be installed as well, for without a version to be found it drops Triton.
Adapted: rows of no sequence are cut off, integers are of 32 bits, and the table has 32 entries
more in each row, for a tile of 32 keys reads entries behind the row's last one. Left out, and
judged with ``VLLM_ALL=1``: rows before the first key (NaN for 0); groups of heads that do not
divide 16, where two blocks write the same rows; windows that are not causal, where a block counts
as 0 the values of keys that its first row does not see and others do.
"""

import os
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent))
from checkouts import checkout

sys.path.append(str(checkout("vllm")))
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # else, without a GPU, it drops Triton
from vllm.v1.attention.ops.triton_unified_attention import unified_attention

TARGET = "sm_90a"
DTYPES = ("float16",)
FEATURES = {"lse": False, "gradient": False, "E != D": False, "width": (16, 32, 64, 128)}


def paged_attention(
    q, k_cache, v_cache, block_table, seqused_k, cu_seqlens_q, causal=False,
    window_size=(-1, -1), softcap=0.0, sinks=None, softmax_scale=None,
):  # fmt: skip
    if window_size[1] != (-1 if causal else window_size[0]):
        raise NotImplementedError("one number says how far a window reaches, to both sides")
    early = bool((seqused_k < cu_seqlens_q.diff()).any())
    uneven = 16 % (q.shape[1] // k_cache.shape[2])
    if "VLLM_ALL" not in os.environ and (early or uneven or (window_size[0] >= 0 and not causal)):
        raise NotImplementedError("left out")
    q, starts = q.contiguous(), cu_seqlens_q.int()
    whole = torch.zeros_like(q)
    own = slice(int(starts[0]), int(starts[-1]))
    longest, keys = int(starts.diff().max()), int(seqused_k.max())
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    table = torch.nn.functional.pad(block_table.int(), (0, 32))
    unified_attention(
        q[own], k_cache, v_cache, whole[own], starts - starts[0], longest, seqused_k.int(), keys,
        scale, causal, window_size, table, softcap, None, None, None, sinks=sinks,
    )  # fmt: skip
    return whole
