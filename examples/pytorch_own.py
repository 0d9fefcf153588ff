"""
PyTorch's own attention as a backend: F.scaled_dot_product_attention, nn.MultiheadAttention and
flex_attention.

    attnverify run --backend examples/pytorch_own.py

Layout and argument names are adapted, nothing else: masks go in as PyTorch documents them (SDPA:
True = may attend, MultiheadAttention: True = hidden), and what comes out, NaN or another exception
included, is what PyTorch gives.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import flex_attention as flex

# Uncompiled flex_attention sends its unfused self through Dynamo, anew for every shape; PyTorch's
# own switch leaves Dynamo out.
flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True

DTYPES = ("float64", "float32", "float16", "bfloat16")
# A CPU that multiplies bfloat16 in hardware flushes subnormals, of its products and sums too.
FTZ = {"storage": "bfloat16_ftz", "acc": "float32_ftz"}
# The flash kernel of the CPU has an exp good to 20 ulp and a backward that adds blocks of rows up
# in the dtype.
FLASH = {dtype: {"preset": "fused", "exp_ulps": 20, "grad_partial": dtype} for dtype in DTYPES}
FLASH["bfloat16"] |= FTZ
# nn.MultiheadAttention scales the query before the product.
MULTI_HEAD = {dtype: {"prescale": dtype} for dtype in DTYPES}
MULTI_HEAD["bfloat16"] |= FTZ
# The masked softmax of the fast path works in the dtype itself.
FASTPATH = {dtype: {**MULTI_HEAD[dtype], "softmax": dtype} for dtype in DTYPES}
PRECISION = {
    # flash where PyTorch can, math where it cannot: the looser of the two
    "scaled_dot_product_attention": FLASH,
    "scaled_dot_product_attention_flash": FLASH,
    "scaled_dot_product_attention_math": {"bfloat16": {"preset": "wide", **FTZ}, "*": "wide"},
    "alibi_attention_flex": {"bfloat16": {"preset": "fused", **FTZ}, "*": "fused"},
    "multi_head_attention": MULTI_HEAD,
    "multi_head_self_attention": MULTI_HEAD,
    "multi_head_self_attention_fastpath": FASTPATH,
}


def scaled_dot_product_attention(query, key, value, mask=None, keep=None, p=0.0):
    if keep is not None:
        raise NotImplementedError("F.scaled_dot_product_attention draws its own dropout mask")
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=p)


def scaled_dot_product_attention_math(query, key, value, mask=None, keep=None, p=0.0):
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query, key, value, mask, keep, p)


def scaled_dot_product_attention_flash(query, key, value, mask=None, keep=None, p=0.0):
    if query.device.type != "cpu":
        raise NotImplementedError("known here are the limits of the CPU flash kernel only")
    if mask is not None and mask.ndim not in (2, 4):
        raise NotImplementedError("the CPU flash kernel wants a mask of two or four axes")
    if mask is not None and mask.requires_grad:
        raise NotImplementedError("the CPU flash kernel has no gradient of the mask")
    if any(x.stride(-1) != 1 for x in (query, key, value)):
        raise NotImplementedError("the CPU flash kernel wants a last axis of stride 1")
    if keep is not None:
        raise NotImplementedError("F.scaled_dot_product_attention draws its own dropout mask")
    D, E = query.shape[-1], value.shape[-1]
    query, key, value = (
        F.pad(x, (0, max(D, E) - own)) for x, own in ((query, D), (key, D), (value, E))
    )  # it wants one width
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=p, scale=D**-0.5
        )[..., :E]


def alibi_attention_flex(query, key, value, visible=None):
    (B, H, N, _), M = query.shape, key.shape[2]
    n = 2 ** (H.bit_length() - 1)
    powers = [-8 / n * (h + 1 if h < n else h - n + 0.5) for h in range(H)]
    slopes = 2 ** torch.tensor(powers, dtype=torch.float64, device=query.device)
    seen = torch.ones(N, M, dtype=torch.bool, device=query.device) if visible is None else visible
    seen = seen.expand(B, H, N, M)

    def add_bias(score, b, h, i, j):
        return score + slopes[h] * (j - i - (M - N))

    def may_attend(b, h, i, j):
        return (j - i <= M - N) & seen[b, h, i, j]

    blocks = flex.create_block_mask(may_attend, B, H, N, M, device=query.device)
    return flex.flex_attention(query, key, value, score_mod=add_bias, block_mask=blocks)


def multi_head_attention(
    query, key, value, parameters, num_heads, attn_mask=None, key_padding_mask=None
):
    layer = nn.MultiheadAttention(query.shape[-1], num_heads, batch_first=True, device="meta")
    options = {
        "attn_mask": attn_mask,
        "key_padding_mask": key_padding_mask,
        "average_attn_weights": False,
    }
    return functional_call(layer, packed(parameters), (query, key, value), options, strict=True)


def multi_head_self_attention(x, parameters, num_heads, attn_mask=None, key_padding_mask=None):
    return multi_head_attention(x, x, x, parameters, num_heads, attn_mask, key_padding_mask)


def multi_head_self_attention_fastpath(
    x, parameters, num_heads, attn_mask=None, key_padding_mask=None
):
    """
    The same layer in eval mode without gradients, which PyTorch sends through a kernel of its own.
    """
    if num_heads % 2:
        raise NotImplementedError("the fast path wants an even number of heads")
    if attn_mask is not None and attn_mask.is_floating_point():
        raise NotImplementedError("the fast path wants no float mask")
    layer = nn.MultiheadAttention(
        x.shape[-1], num_heads, batch_first=True, dtype=x.dtype, device=x.device
    ).eval()
    layer.load_state_dict(packed(parameters))
    with torch.no_grad():
        return layer(
            x,
            x,
            x,
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            average_attn_weights=False,
        )


def packed(parameters):
    """
    nn.MultiheadAttention keeps the three projections in one matrix and wants all biases or none:
    absent is zero.
    """
    state = dict(parameters)
    weights = [state.pop(f"{name}_proj.weight") for name in "qkv"]
    biases = [
        state.pop(f"{name}_proj.bias", weights[0].new_zeros(len(weights[0]))) for name in "qkv"
    ]
    state.setdefault("out_proj.bias", torch.zeros_like(biases[0]))
    return state | {"in_proj_weight": torch.cat(weights), "in_proj_bias": torch.cat(biases)}
