"""
flash_attn/ops/triton/rotary.py of Dao-AILab/flash-attention (BSD-3-Clause), seen at 0251105: rotary
embedding of a part of the channels, in halves or interleaved; its backward pass is the same kernel
with ``conjugate``.

    git clone https://github.com/Dao-AILab/flash-attention $PUBLIC_KERNELS/flash-attention
    attnverify run examples/public_kernels/flash_attn_rotary.py --profile quick

Adapted: it takes tables of cosines and sines and the first position of a row; here each entry of
the batch has a table of its own positions, in float64 before it is rounded, and a launch.
``torch.library.wrap_triton``, which ``torch.compile`` needs, is left out.
"""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent))
from checkouts import load

TARGET = "sm_90a"
DTYPES = ("float32", "float16", "bfloat16")
FEATURES = {"gradient": False}

kernel = load(
    "flash-attention",
    "flash_attn/ops/triton/rotary.py",
    ("torch.library.wrap_triton(rotary_kernel)", "rotary_kernel"),
)


def rotary_embedding(x, positions, pairing, base=10000.0, rotary_dim=None, frequencies=None):
    R = (rotary_dim or x.shape[-1]) // 2
    if x.shape[-1] > 256:
        raise NotImplementedError("Only support headdim <= 256")
    given = base ** (-torch.arange(R) / R).double() if frequencies is None else frequencies.double()
    angles = positions[..., None] * given
    rows = x.transpose(1, 2).contiguous()
    out = [
        kernel.apply_rotary(
            rows[b : b + 1], at.cos().float(), at.sin().float(),
            interleaved=pairing == "interleaved",
        )
        for b, at in enumerate(angles.expand(len(x), -1, -1))
    ]  # fmt: skip
    return torch.cat(out).transpose(1, 2)
