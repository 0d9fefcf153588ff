"""
The specification again, without loops: vectorised NumPy, the oracle at real sizes, and a backend
for the judge itself.

It shares no arithmetic with ``spec`` and works in float64, float32, float16 and bfloat16: narrow
formats are widened to float32 and rounded once, at the end. Results without a float input take a
keyword ``dtype``, float64 by default.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from .alibi import alibi_attention, alibi_attention_grad, get_alibi_biases, get_slopes
from .arrays import is_float
from .attention import (
    additive_attention,
    additive_attention_grad,
    dropout,
    dropout_grad,
    scaled_dot_product_attention,
    scaled_dot_product_attention_grad,
    softmax,
    softmax_grad,
)
from .grouped import (
    grouped_attention,
    grouped_attention_grad,
    merge_attention,
    merge_attention_grad,
)
from .latent import latent_attention, latent_attention_grad
from .layers import (
    alibi_multi_head_attention,
    alibi_multi_head_attention_grad,
    multi_head_attention,
    multi_head_attention_grad,
    multi_head_self_attention,
    multi_head_self_attention_grad,
    relative_multi_head_attention,
    relative_multi_head_attention_grad,
    self_attention,
    self_attention_grad,
    transformer_xl,
    transformer_xl_grad,
    transformer_xl_layer,
    transformer_xl_layer_grad,
)
from .masks import causal_mask, merge_masks, visible_keys
from .memory import init_mems, update_mems, update_mems_grad
from .packed import packed_attention, packed_attention_grad
from .paged import paged_attention
from .quantized import dequantize
from .relative import (
    learned_relative_attention,
    learned_relative_attention_grad,
    learned_relative_score,
    learned_relative_score_grad,
    sinusoidal_positions,
    transformer_xl_attention,
    transformer_xl_attention_grad,
    transformer_xl_score,
    transformer_xl_score_grad,
)
from .rotary import rotary_embedding, rotary_embedding_grad
from .rounding import float_dtype
from .scores import (
    additive_score,
    additive_score_grad,
    scaled_dot_product_score,
    scaled_dot_product_score_grad,
)
from .selected import selected_attention, selected_attention_grad
from .shifts import rel_shift, rel_shift_grad, shift_right, shift_right_grad

__all__ = [
    "additive_attention",
    "additive_attention_grad",
    "additive_score",
    "additive_score_grad",
    "alibi_attention",
    "alibi_attention_grad",
    "alibi_multi_head_attention",
    "alibi_multi_head_attention_grad",
    "causal_mask",
    "dequantize",
    "dropout",
    "dropout_grad",
    "get_alibi_biases",
    "get_slopes",
    "grouped_attention",
    "grouped_attention_grad",
    "init_mems",
    "latent_attention",
    "latent_attention_grad",
    "learned_relative_attention",
    "learned_relative_attention_grad",
    "learned_relative_score",
    "learned_relative_score_grad",
    "merge_attention",
    "merge_attention_grad",
    "merge_masks",
    "multi_head_attention",
    "multi_head_attention_grad",
    "multi_head_self_attention",
    "multi_head_self_attention_grad",
    "packed_attention",
    "packed_attention_grad",
    "paged_attention",
    "rel_shift",
    "rel_shift_grad",
    "relative_multi_head_attention",
    "relative_multi_head_attention_grad",
    "rotary_embedding",
    "rotary_embedding_grad",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_grad",
    "scaled_dot_product_score",
    "scaled_dot_product_score_grad",
    "selected_attention",
    "selected_attention_grad",
    "self_attention",
    "self_attention_grad",
    "shift_right",
    "shift_right_grad",
    "sinusoidal_positions",
    "softmax",
    "softmax_grad",
    "transformer_xl",
    "transformer_xl_attention",
    "transformer_xl_attention_grad",
    "transformer_xl_grad",
    "transformer_xl_layer",
    "transformer_xl_layer_grad",
    "transformer_xl_score",
    "transformer_xl_score_grad",
    "update_mems",
    "update_mems_grad",
    "visible_keys",
]

PRECISION = "wide"


def from_numpy(x: ndarray, dtype: Any) -> ndarray:
    """
    Floats rounded to dtype, strides kept where they can be; booleans and integers as they are.
    """
    with np.errstate(all="ignore"):
        return x.astype(float_dtype(dtype), copy=False) if is_float(x) else x


def to_numpy(x: ndarray) -> ndarray:
    """Floats widened to float64, exactly."""
    with np.errstate(all="ignore"):
        return x.astype(np.float64, copy=False) if is_float(x) else x


def synchronize() -> None:
    """Nothing to wait for."""


def missing() -> str | None:
    """NumPy is always there."""
    return None
