"""
The systems of the source documents as ``torch.nn.Module``, under the documents' class names, and
each of them called as an operation (``multi_head_attention_module``).
"""

from . import as_operations
from .as_operations import *  # noqa: F403
from .attention_modules import (
    AdditiveAttention,
    MultiHeadAttention,
    MultiHeadSelfAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from .labml_modules import AlibiMultiHeadAttention, RelativeMultiHeadAttention
from .transformer_xl import TransformerXL, TransformerXLLayer

__all__ = [
    "AdditiveAttention",
    "AlibiMultiHeadAttention",
    "MultiHeadAttention",
    "MultiHeadSelfAttention",
    "RelativeMultiHeadAttention",
    "ScaledDotProductAttention",
    "SelfAttention",
    "TransformerXL",
    "TransformerXLLayer",
    *as_operations.__all__,
]
