"""
Additive attention in blocks that stay in a cache: the specification is :mod:`spec.attention`.

Written for CPUs, as :mod:`torch_impl.blocked.attention` is: no N x M tensor exists, let alone one
of N x M x A (:mod:`torch_impl.blocked.additive_operators`). Half types are computed in float32 and
rounded once. Derivatives are those of the first order, in reverse mode.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnverify.contract.attention import check_additive

from ..arrays import TENSORS
from ..attention import (
    Keep,
    Mask,
    bias_and_visible,
    weighted,
)
from ..scores import wide
from ..transforms.autocast import lowered
from ..transforms.derivatives import (
    applied,
    derivatives_of_formula,
    first_derivatives,
    is_functorch_wrapped,
    may_look,
)
from . import additive_operators as operators
from .tiles import present

__all__ = ["additive_attention_blocked"]


@lowered
def additive_attention_blocked(
    query: Float[Tensor, "B N Q"],
    key: Float[Tensor, "B M K"],
    value: Float[Tensor, "B M E"],
    w_query: Float[Tensor, "A Q"],
    w_key: Float[Tensor, "A K"],
    w_score: Float[Tensor, "A"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Tensor, "B N E"]:
    """As :func:`spec.attention.additive_attention`."""
    check_additive(TENSORS, (query, key, value, w_query, w_key, w_score), mask, keep, p)
    mask, keep = one_head(mask), one_head(keep)
    if mask is not None:
        N, M = query.shape[1], key.shape[1]
        sees, seen, _ = present(mask.detach(), N, M, causal=False, first=0, W=0)
        sees, seen = sees[:, 0], seen[:, 0]
        query, key, value = query.where(sees, 0), key.where(seen, 0), value.where(seen, 0)
    q, k, x, w_query, w_key, w_score = wide(query, key, value, w_query, w_key, w_score)
    q, k, x = (y.unsqueeze(1) for y in (F.linear(q, w_query), F.linear(k, w_key), x))
    given = q, k, x, mask, keep, w_score, 1 / (1 - p)
    out, _, _ = applied(BlockedAdditive, *IN_WORDS, *given)
    return out.squeeze(1).to(query.dtype)


def one_head(mask: Tensor | None) -> Tensor | None:
    """A mask of up to three axes with four, of one head."""
    return None if mask is None else mask[(None,) * (3 - mask.ndim)].unsqueeze(1)


IN_WORDS = "additive_attention_blocked", "additive_attention (a module: implementation='torch')"


def later_derivatives(
    found: list[Tensor],
    d_output: Tensor,
    saved: tuple[Tensor, ...],
    share: float,
    mask_too: bool,
) -> list[Tensor]:
    """The gradients, whose own derivatives are those of the formula, or in torch.func refused."""
    if not torch.is_grad_enabled() or not may_look(d_output) or is_functorch_wrapped(d_output):
        return first_derivatives(*IN_WORDS, found, d_output, *saved)
    query, key, value, mask, keep, w_score = saved[3:]

    def output(query: Tensor, key: Tensor, value: Tensor, *others: Tensor) -> Tensor:
        *added, w_score = others
        bias, visible = bias_and_visible(added[0] if added else mask, 4)
        score = scores_of_features(query, key, w_score)
        return weighted(score, value, bias, visible, keep, 1 - 1 / share, False)[0]

    given = (query, key, value, *[mask] * mask_too, w_score)
    return derivatives_of_formula(output, found, d_output, *given)


def scores_of_features(query: Tensor, key: Tensor, w_score: Tensor) -> Tensor:
    """w_score . tanh(q + k) of projected queries and keys."""
    return (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh() @ w_score


class BlockedAdditive(torch.autograd.Function):
    """Keeps the output and two numbers a row; the backward pass computes the hidden layer again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        keep: Tensor | None,
        w_score: Tensor,
        share: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All by name: torch.compile counts them, to see whether a context comes first."""
        return operators.attention(query, key, value, mask, keep, w_score, share)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.share = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output, *tensors)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        saved, mask_too = ctx.saved_tensors, ctx.needs_input_grad[3]
        with torch.no_grad():
            found = operators.attention_grad(d_output, *saved, ctx.share, mask_too)
        *d_heads, d_score = later_derivatives(found, d_output, saved, ctx.share, mask_too)
        d_mask = d_heads.pop().to(saved[6].dtype) if mask_too else None
        return *d_heads, d_mask, None, d_score, None
