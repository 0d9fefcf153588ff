"""
flash_attn/ops/triton/cross_entropy.py of Dao-AILab/flash-attention (BSD-3-Clause), seen at 0251105:
the cross-entropy of rows of logits, forward and backward.

    git clone https://github.com/Dao-AILab/flash-attention $PUBLIC_KERNELS/flash-attention
    attnverify run examples/public_kernels/flash_attn_cross_entropy.py --profile quick \
        --spec examples/public_kernels/specifications.py:cross_entropy

Adapted: nothing; the loss, which is float32 always, is returned in the dtype of the logits.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
from checkouts import load

TARGET = "sm_90a"
DTYPES = ("float32", "float16", "bfloat16")

kernel = load("flash-attention", "flash_attn/ops/triton/cross_entropy.py")


def cross_entropy(logits, labels):
    return kernel.cross_entropy_loss(logits, labels)[0].to(logits.dtype)
