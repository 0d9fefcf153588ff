"""
F.scaled_dot_product_attention: the kernels that PyTorch brings, with a materialised bias where
there is a bias.

``_sdpa`` is what PyTorch chooses; ``_flash``, ``_cudnn`` and ``_efficient`` are the kernels of that
name and nothing else.
"""

from math import sqrt

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = ("float64", "float32", "float16", "bfloat16")
CPU = {
    dtype: {
        "preset": "fused",
        "exp_ulps": 20,
        "grad_partial": dtype,
        "prescale": "float32",
        "score": dtype,
    }
    for dtype in DTYPES
}
CPU["bfloat16"] |= {"storage": "bfloat16_ftz", "acc": "float32_ftz"}
CPU["float64"]["prescale"] = "float64"
# The kernels of a GPU take the bias in the dtype of the query.
GPU = {
    dtype: {"preset": "fused", "score": dtype, "bias": dtype, "acc_unit": 2.0**-22}
    for dtype in DTYPES
}
PRECISION = GPU if torch.cuda.is_available() else CPU


def scaled_dot_product_attention(query, key, value, mask=None, keep=None, p=0.0):
    if keep is not None:
        raise NotImplementedError("it draws its own dropout mask")
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def scaled_dot_product_attention_flash(query, key, value, mask=None, keep=None, p=0.0):
    return only(SDPBackend.FLASH_ATTENTION, query, key, value, mask)


def scaled_dot_product_attention_cudnn(query, key, value, mask=None, keep=None, p=0.0):
    return only(SDPBackend.CUDNN_ATTENTION, query, key, value, mask)


def scaled_dot_product_attention_efficient(query, key, value, mask=None, keep=None, p=0.0):
    return only(SDPBackend.EFFICIENT_ATTENTION, query, key, value, mask)


def only(kernel, query, key, value, mask):
    """One kernel and no other; where it cannot, PyTorch says so."""
    try:
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    except RuntimeError as error:
        raise NotImplementedError(str(error).splitlines()[0]) from None


def alibi_attention(query, key, value, visible=None):
    (H, N), M = query.shape[1:3], key.shape[2]
    if visible is not None or H & (H - 1):
        raise NotImplementedError("the causal mask alone, head counts that are a power of two")
    steep = 2.0 ** (-8.0 / H * torch.arange(1, H + 1, dtype=torch.float32, device=query.device))
    distance = (
        torch.arange(M, device=query.device) - torch.arange(M - N, M, device=query.device)[:, None]
    )
    bias = (steep[:, None, None] * distance).masked_fill(distance > 0, -torch.inf)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias.to(query.dtype).expand(len(query), -1, -1, -1)
    )


def transformer_xl_attention(query, key, value, position, u, v, visible=None):
    """As NeMo does it: the shifted position score is the mask of SDPA."""
    if visible is not None:
        raise NotImplementedError("the causal mask alone")
    N, M = query.shape[2], key.shape[2]
    score = (query + v.unsqueeze(-2)) @ position.mT / sqrt(query.shape[-1])
    padded = F.pad(score, (1, 0)).view(*score.shape[:2], M + 1, N)[:, :, 1:].reshape(score.shape)
    hidden = torch.ones(N, M, dtype=torch.bool, device=query.device).triu(M - N + 1)
    return F.scaled_dot_product_attention(
        query + u.unsqueeze(-2), key, value, attn_mask=padded.masked_fill(hidden, -torch.inf)
    )


def learned_relative_attention(
    query, key, value, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible=None
):
    """The position score [N, N + M], sheared by cat and view as labml does, is the mask of SDPA."""
    if align != "end" or (visible is not None and visible.ndim != 2):
        raise NotImplementedError("end-aligned tables, a mask of two axes")
    N, M, P = query.shape[2], key.shape[2], len(key_pos_bias) // 2
    table, bias = key_pos_embeddings[P - M : P + N], key_pos_bias[P - M : P + N]
    score = (torch.einsum("bhnd,whd->bhnw", query, table) + bias.T[:, None]) / sqrt(query.shape[-1])
    sheared = F.pad(score, (0, 1)).flatten(-2)[..., : N * (N + M)].view(score.shape)[..., N:]
    sheared = sheared if visible is None else sheared.masked_fill(~visible, -torch.inf)
    return F.scaled_dot_product_attention(
        query + query_pos_bias.unsqueeze(-2), key, value, attn_mask=sheared
    )
