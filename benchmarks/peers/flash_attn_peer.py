"""flash-attn's own kernels, ALiBi slopes included. float16 and bfloat16."""

import torch
from flash_attn import flash_attn_func

PRECISION = "fused"


def ordered(x):
    return x.transpose(1, 2)


def scaled_dot_product_attention(query, key, value, mask=None, keep=None, p=0.0):
    if mask is not None or keep is not None or query.dtype == torch.float32:
        raise NotImplementedError("half types, no mask and no dropout")
    return ordered(flash_attn_func(ordered(query), ordered(key), ordered(value)))


def alibi_attention(query, key, value, visible=None):
    H = query.shape[1]
    if visible is not None or query.dtype == torch.float32 or H & (H - 1):
        raise NotImplementedError(
            "half types, the causal mask alone, head counts that are a power of two"
        )
    steep = 2.0 ** (-8.0 / H * torch.arange(1, H + 1, dtype=torch.float32, device=query.device))
    return ordered(
        flash_attn_func(
            ordered(query), ordered(key), ordered(value), causal=True, alibi_slopes=steep
        )
    )
