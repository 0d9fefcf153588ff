"""
What the layers compute their attention with, by name.

torch    PyTorch's ``F.scaled_dot_product_attention``, and what it chooses
eager    product, softmax, product, spelled out
blocked  blocks that stay in the cache of a CPU, without a tensor of all pairs
triton   the fused Triton kernels
fastest  of torch, blocked and triton the one that answers to the plain names, call by call
         (:mod:`torch_impl.paths.fastest`)

A module does as it is told: but for "fastest", no device, size or error makes it take another one.
Blocks and kernels keep no weights, so that a layer whose weights are a result is
NotImplementedError with them, unless it is asked for its output alone. In an autocast region all of
them take their inputs in its dtype, but for what is added to the scores.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from ..attention import (
    Keep,
    additive_attention,
    additive_formula,
    explicit,
    fused_or_dropped,
    scaled_dot_product_attention,
    scaled_dot_product_attention_eager,
)
from ..blocked import attention as blocked
from ..blocked.additive import additive_attention_blocked
from ..relative import Visible, causal_and, four_axes, learned_relative_terms, transformer_xl_terms
from ..scores import wide
from ..transforms.autocast import lowered
from ..triton import attention as triton
from ..triton.additive import additive_attention_triton
from .fastest import which_answers

__all__ = ["TORCH", "Attentions", "known", "named"]


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


def known(implementation: Any) -> str:
    """The name, held to those that there are."""
    if not isinstance(implementation, str) or implementation not in BY_NAME:
        *others, last = map(repr, BY_NAME)
        raise ValueError(
            f"implementation: wanted {', '.join(others)} or {last}, got {implementation!r}"
        )
    return implementation


def named(implementation: str) -> Attentions:
    """The attentions of that name."""
    return BY_NAME[known(implementation)]


def with_positions(
    masked: Callable[..., Tensor], widen: Callable[..., tuple[Tensor, ...]] = lambda *given: given
) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """
    The two relative attentions of :mod:`torch_impl.relative` with the draw of a dropout: the
    position score is what is added to the scores.
    """

    def learned_relative(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        embeddings: Tensor,
        table_bias: Tensor,
        query_bias: Tensor,
        align: str,
        visible: Visible,
        keep: Keep = None,
        p: float = 0.0,
    ) -> Tensor:
        q, k, x, table, bias, plus = widen(query, key, value, embeddings, table_bias, query_bias)
        q, added, seen = learned_relative_terms(q, k, table, bias, plus, align, four_axes(visible))
        return masked(q, k, x, added, seen, keep, p).to(query.dtype)

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
        q, k, x, table, u, v = widen(query, key, value, position, u, v)
        q, added, seen = transformer_xl_terms(q, k, table, u, v, causal_and(visible, query, key))
        return masked(q, k, x, added, seen, keep, p).to(query.dtype)

    return lowered(learned_relative), lowered(transformer_xl)


def spelled_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    visible: Tensor | None,
    keep: Keep = None,
    p: float = 0.0,
) -> Tensor:
    """The output of the formula, without its weights."""
    return explicit(query, key, value, bias, visible, keep, p)[0]


def in_one_mask(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An attention that takes one mask, given what is added and what is visible."""

    def masked(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        visible: Tensor | None,
        keep: Keep = None,
        p: float = 0.0,
    ) -> Tensor:
        mask = visible if bias is None else bias
        if bias is not None and visible is not None:
            mask = torch.where(visible, bias, -torch.inf)
        return attend(query, key, value, mask, keep, p)

    return masked


def no_weights(*args: Any) -> NoReturn:
    raise NotImplementedError(
        "blocks and kernels keep no weights: ask for the output alone, with need_weights=False"
    )


weighed = lowered(explicit, kept=("bias",))

BY_NAME = {
    "torch": Attentions(
        scaled_dot_product_attention,
        lowered(additive_formula),
        weighed,
        lowered(fused_or_dropped, kept=("bias",)),
        *with_positions(fused_or_dropped),
    ),
    "eager": Attentions(
        scaled_dot_product_attention_eager,
        lowered(additive_formula),
        weighed,
        lowered(spelled_out, kept=("bias",)),
        *with_positions(spelled_out, wide),
    ),
    "blocked": Attentions(
        blocked.scaled_dot_product_attention_blocked,
        additive_attention_blocked,
        no_weights,
        in_one_mask(blocked.scaled_dot_product_attention_blocked),
        lowered(blocked._learned_relative_attention),
        lowered(blocked._transformer_xl_attention),
    ),
    "triton": Attentions(
        triton.scaled_dot_product_attention_triton,
        additive_attention_triton,
        no_weights,
        in_one_mask(triton.scaled_dot_product_attention_triton),
        lowered(triton._learned_relative_attention),
        lowered(triton._transformer_xl_attention),
    ),
}
TORCH = BY_NAME["torch"]


def chosen(operation: str, field: str) -> Callable[..., Tensor]:
    """An attention of inputs that are checked already, by the path that is fastest for them."""

    def attend(*given: Any, **more: Any) -> Tensor:
        floats = [x for x in given[:6] if isinstance(x, Tensor)]
        masks = [x for x in (*given[6:], *more.values()) if isinstance(x, Tensor)]
        how = which_answers(operation, *floats, masks=tuple(masks))
        return getattr(BY_NAME[how], field)(*given, **more)

    return lowered(attend)


BY_NAME["fastest"] = TORCH._replace(
    additive=additive_attention,
    learned_relative=chosen("learned_relative_attention", "learned_relative"),
    transformer_xl=chosen("transformer_xl_attention", "transformer_xl"),
)
