"""
flash_attn/flash_attn_triton.py of Dao-AILab/flash-attention (BSD-3-Clause), seen at 0251105:
forward and backward in Triton, with a bias; written for Triton 2.0 and an A100.

    git clone https://github.com/Dao-AILab/flash-attention $PUBLIC_KERNELS/flash-attention
    attnverify run examples/public_kernels/flash_attn_triton.py --profile quick

Adapted: products with ``trans_a`` and ``trans_b``, which Triton 3 does not have, are products with
``tl.trans``; a mask is handed over as a bias, and None where there is none, for the backward pass
asks for a fourth argument. Its own ``causal=True`` aligns at the start: ALiBi attention, with the
bias that its documentation proposes, is asked for where N = M.
"""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent))
from checkouts import alibi_slopes, load

TARGET = "sm_80"  # the GPU it was written for
DTYPES = ("float16", "bfloat16")
LAYOUT = "BNHD"
FEATURES = {"E != D": False, "dropout": False}
ATOMIC = {"preset": "fused", "acc": "float32_ftz"}  # red.global.add.f32 has no subnormal numbers
PRECISION = {
    "scaled_dot_product_attention_grad": {"*": ATOMIC},
    "alibi_attention": {"*": {"preset": "fused", "bias_form": "absolute"}},
    "alibi_attention_grad": {"*": ATOMIC | {"bias_form": "absolute"}},
    "*": "fused",
}

kernels = load(
    "flash-attention",
    "flash_attn/flash_attn_triton.py",
    ("tl.dot(q, k, trans_b=True)", "tl.dot(q, tl.trans(k))"),
    ("tl.dot(do, v, trans_b=True)", "tl.dot(do, tl.trans(v))"),
    ("tl.dot(p.to(do.dtype), do, trans_a=True)", "tl.dot(tl.trans(p.to(do.dtype)), do)"),
    ("tl.dot(ds, q, trans_a=True)", "tl.dot(tl.trans(ds), q)"),
)


def scaled_dot_product_attention(query, key, value, mask=None):
    refuse_wide(query)
    if mask is None:
        return kernels.flash_attn_func(query, key, value, None)  # its backward asks for a bias
    if mask.requires_grad:
        raise NotImplementedError("FlashAttention does not support bias gradient yet")
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, -torch.inf)
    (B, N, H, _), M = query.shape, key.shape[1]
    return kernels.flash_attn_func(query, key, value, mask.expand(B, H, N, M).contiguous())


def alibi_attention(query, key, value, visible=None):
    refuse_wide(query)
    if visible is not None or query.shape[1] != key.shape[1]:
        raise NotImplementedError("causal=True knows no mask, and aligns at the start")
    M, H = key.shape[1:3]
    bias = torch.tensor(alibi_slopes(H))[:, None, None] * torch.arange(M)
    return kernels.flash_attn_func(query, key, value, bias.float()[None], True)


def refuse_wide(query):
    if query.shape[-1] > 128:
        raise NotImplementedError("FlashAttention only support head dimensions up to 128")
