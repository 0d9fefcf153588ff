"""
x-transformers as a backend: ALiBi as AlibiPositionalBias makes it and Attend adds it.

    attnverify run --backend examples/x_transformers_backend.py

Its layout is ours; its masks have four axes, True = may attend. `_flash` is Attend on
F.scaled_dot_product_attention.
"""

from functools import cache

from x_transformers.attend import Attend
from x_transformers.x_transformers import AlibiPositionalBias

ARRAYS = "torch"
# A CPU that multiplies bfloat16 in hardware flushes subnormals, of its products and sums too.
FTZ = {"storage": "bfloat16_ftz", "acc": "float32_ftz"}
SOFTMAX_IN_FLOAT32 = {"score": "float32", "softmax": "float32", "prob": "float32"}  # in every dtype
BIAS = {  # the slopes are made in float32 and cast with the model
    "float64": {"bias": "float32"},
    "float32": {"bias": "float32"},
    "float16": {"bias": "float16"},
    "bfloat16": {"bias": "bfloat16", **FTZ},
}
FLASH = {
    dtype: {"preset": "fused", "exp_ulps": 20, "grad_partial": dtype, **BIAS[dtype]}
    for dtype in BIAS
}
PRECISION = {
    "*": BIAS | {"float64": BIAS["float64"] | SOFTMAX_IN_FLOAT32},
    "scaled_dot_product_attention_flash": FLASH,
    "alibi_attention_flash": FLASH,
}


def get_slopes(n_heads):
    return AlibiPositionalBias(n_heads).slopes.flatten()


def scaled_dot_product_attention(query, key, value, mask=None, keep=None, p=0.0, flash=False):
    if keep is not None:
        raise NotImplementedError("x-transformers draws its own dropout mask")
    is_bias = mask is not None and mask.is_floating_point()
    masks = {"attn_bias": mask} if is_bias else {"mask": four_axes(mask)}
    return Attend(dropout=p, flash=flash)(query, key, value, **masks)[0]


def scaled_dot_product_attention_flash(query, key, value, mask=None, keep=None, p=0.0):
    return scaled_dot_product_attention(query, key, value, mask, keep, p, flash=True)


def alibi_attention(query, key, value, visible=None, flash=False):
    bias = alibi_bias(query.shape[1], query.dtype)(query.shape[2], key.shape[2]).to(query.device)
    return Attend(causal=True, flash=flash)(
        query, key, value, mask=four_axes(visible), attn_bias=bias
    )[0]


def alibi_attention_flash(query, key, value, visible=None):
    return alibi_attention(query, key, value, visible, flash=True)


@cache
def alibi_bias(n_heads, dtype):
    """Lives on between calls, as in a model, with the biases that it keeps."""
    return AlibiPositionalBias(n_heads).to(dtype)


def four_axes(mask):
    return mask[None, None] if mask is not None and mask.ndim == 2 else mask
