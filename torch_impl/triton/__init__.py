"""
Attention by fused Triton kernels. Importing this package does not import Triton: a first call does.
"""

from .additive import additive_attention_triton
from .attention import (
    alibi_attention_triton,
    learned_relative_attention_triton,
    scaled_dot_product_attention_triton,
    transformer_xl_attention_triton,
)
from .cached import latent_attention_triton, paged_attention_triton

__all__ = [
    "additive_attention_triton",
    "alibi_attention_triton",
    "latent_attention_triton",
    "learned_relative_attention_triton",
    "paged_attention_triton",
    "scaled_dot_product_attention_triton",
    "transformer_xl_attention_triton",
]
