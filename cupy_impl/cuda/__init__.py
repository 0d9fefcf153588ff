"""
Attention by fused kernels in CUDA C++.

:mod:`attnverify.cupy_impl.cuda.launch` compiles an instance of a source of ``kernels/`` and runs it
where the arrays are: on a GPU, or on a CPU in ``emulation/``.
"""

from .additive import additive_attention_cuda, additive_attention_grad_cuda
from .attention import (
    alibi_attention_cuda,
    alibi_attention_grad_cuda,
    learned_relative_attention_cuda,
    learned_relative_attention_grad_cuda,
    scaled_dot_product_attention_cuda,
    scaled_dot_product_attention_grad_cuda,
    transformer_xl_attention_cuda,
    transformer_xl_attention_grad_cuda,
)

__all__ = [
    "additive_attention_cuda",
    "additive_attention_grad_cuda",
    "alibi_attention_cuda",
    "alibi_attention_grad_cuda",
    "learned_relative_attention_cuda",
    "learned_relative_attention_grad_cuda",
    "scaled_dot_product_attention_cuda",
    "scaled_dot_product_attention_grad_cuda",
    "transformer_xl_attention_cuda",
    "transformer_xl_attention_grad_cuda",
]
