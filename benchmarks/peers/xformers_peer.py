"""xformers' memory-efficient attention, with a materialised bias for ALiBi."""

import torch
from xformers.ops import LowerTriangularMask, memory_efficient_attention

PRECISION = "fused"


def ordered(x):
    return x.transpose(1, 2)


def scaled_dot_product_attention(query, key, value, mask=None, keep=None, p=0.0):
    if mask is not None or keep is not None:
        raise NotImplementedError("no mask and no dropout here")
    return ordered(memory_efficient_attention(ordered(query), ordered(key), ordered(value)))


def alibi_attention(query, key, value, visible=None):
    (B, H, N), M = query.shape[:3], key.shape[2]
    if visible is not None or N != M or M % 8 or H & (H - 1):
        raise NotImplementedError(
            "square and causal, lengths by eight, head counts that are a power of two"
        )
    steep = 2.0 ** (-8.0 / H * torch.arange(1, H + 1, dtype=torch.float32, device=query.device))
    distance = torch.arange(M, device=query.device) - torch.arange(N, device=query.device)[:, None]
    bias = (steep[:, None, None] * distance).to(query.dtype).expand(B, -1, -1, -1)
    causal = LowerTriangularMask().add_bias(bias)
    return ordered(
        memory_efficient_attention(ordered(query), ordered(key), ordered(value), attn_bias=causal)
    )
