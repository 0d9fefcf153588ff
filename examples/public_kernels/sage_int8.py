"""
sageattention/triton/attn_qk_int8_per_block.py of thu-ml/SageAttention (Apache-2.0), seen at
d1a57a5: attention of queries and keys of 8 bits with a scale a block, summed in float16.

    git clone https://github.com/thu-ml/SageAttention $PUBLIC_KERNELS/SageAttention
    attnverify run examples/public_kernels/sage_int8.py --profile quick \
        --spec examples/public_kernels/specifications.py:int8_attention

Adapted: arrays are made contiguous and scales float32; one block of 128 queries.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
from checkouts import load

TARGET = "sm_90a"
DTYPES = ("float16",)
FEATURES = {"gradient": False}
PRECISION = {"preset": "fused", "accumulate": "float16"}

kernel = load("SageAttention", "sageattention/triton/attn_qk_int8_per_block.py")


def int8_attention(q, k, v, q_scale, k_scale):
    if q.shape[2] > 128:
        raise NotImplementedError("one block of queries")
    q, k, v = (x.contiguous() for x in (q, k, v))
    return kernel.forward(q, k, v, q_scale.float().contiguous(), k_scale.float().contiguous())[0]
