"""
What the layers compute their attention with: PyTorch's own operations, or the fused Triton kernels.

A module is told by name and does as it is told: no device, size or error makes it take the other
one. The kernels keep no weights, so that a layer whose weights are a result is NotImplementedError
with them, unless it is asked for its output alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from .attention import (
    Keep,
    additive_attention,
    explicit,
    fused_or_dropped,
    scaled_dot_product_attention,
)
from .autocast import lowered
from .relative import Visible, causal_and, four_axes, learned_relative_terms, transformer_xl_terms
from .triton.additive import additive_attention_triton
from .triton.attention import (
    _learned_relative_attention,
    _transformer_xl_attention,
    scaled_dot_product_attention_triton,
)

__all__ = ["TORCH", "Attentions", "named"]


class Attentions(NamedTuple):
    """
    The attentions of the layers; each takes the draw of a dropout last.

    scaled, additive  the operations with a mask; weighed: output and weights, of a bias to add and
                      what is visible
    masked            the output alone; learned_relative, transformer_xl: the operations, of inputs
                      that are checked already
    """

    scaled: Callable[..., Tensor]
    additive: Callable[..., Tensor]
    weighed: Callable[..., tuple[Tensor, Tensor]]
    masked: Callable[..., Tensor]
    learned_relative: Callable[..., Tensor]
    transformer_xl: Callable[..., Tensor]


def named(implementation: Any) -> Attentions:
    """The attentions of that name."""
    if implementation not in ("torch", "triton"):
        raise ValueError(f"implementation: wanted 'torch' or 'triton', got {implementation!r}")
    return TRITON if implementation == "triton" else TORCH


def learned_relative(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embeddings: Tensor,
    bias: Tensor,
    query_bias: Tensor,
    align: str,
    visible: Visible,
    keep: Keep = None,
    p: float = 0.0,
) -> Tensor:
    """:func:`torch_impl.relative.learned_relative_attention` with the draw of a dropout."""
    q, added, seen = learned_relative_terms(
        query, key, embeddings, bias, query_bias, align, four_axes(visible)
    )
    return fused_or_dropped(q, key, value, added, seen, keep, p)


def transformer_xl(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    u: Tensor,
    v: Tensor,
    visible: Visible,
    keep: Keep = None,
    p: float = 0.0,
) -> Tensor:
    """:func:`torch_impl.relative.transformer_xl_attention` with the draw of a dropout."""
    q, added, seen = transformer_xl_terms(
        query, key, position, u, v, causal_and(visible, query, key)
    )
    return fused_or_dropped(q, key, value, added, seen, keep, p)


def masked_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    visible: Tensor | None,
    keep: Keep = None,
    p: float = 0.0,
) -> Tensor:
    """What is added and what is visible as the one mask that the kernel takes."""
    mask = (
        visible
        if bias is None
        else bias
        if visible is None
        else torch.where(visible, bias, -torch.inf)
    )
    return scaled_dot_product_attention_triton(query, key, value, mask, keep, p)


def weighed_triton(*args: Any) -> NoReturn:
    raise NotImplementedError(
        "the Triton kernels keep no weights: ask for the output alone, with need_weights=False"
    )


TORCH = Attentions(
    scaled_dot_product_attention,
    additive_attention,
    explicit,
    fused_or_dropped,
    learned_relative,
    transformer_xl,
)
TRITON = Attentions(
    scaled_dot_product_attention_triton,
    additive_attention_triton,
    weighed_triton,
    masked_triton,
    lowered(_learned_relative_attention),
    lowered(_transformer_xl_attention),
)
