"""Attention for CPUs in blocks that stay in a cache, without a tensor of all pairs."""

from .additive import additive_attention_blocked
from .attention import (
    alibi_attention_blocked,
    learned_relative_attention_blocked,
    scaled_dot_product_attention_blocked,
    transformer_xl_attention_blocked,
)

__all__ = [
    "additive_attention_blocked",
    "alibi_attention_blocked",
    "learned_relative_attention_blocked",
    "scaled_dot_product_attention_blocked",
    "transformer_xl_attention_blocked",
]
