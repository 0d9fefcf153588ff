"""
Attention: the specification is :mod:`spec.attention`.

Every attention of this column is a query, a key, a value, a bias to add to the scaled scores and
what is visible. Two functions turn these into an output: :func:`fused` calls
``F.scaled_dot_product_attention``, :func:`explicit` spells the formula out.
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnverify.contract.attention import (
    check_additive,
    check_attention,
    check_dropout,
    check_softmax,
)

from .arrays import TENSORS
from .isolation import is_lost, scaled_seen, seen_by_tanh, sum_seen
from .paths.fastest import faster
from .scores import additive, scaled, wide
from .transforms.autocast import lowered
from .transforms.derivatives import in_forward_mode, is_batched

__all__ = [
    "additive_attention",
    "dropout",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_eager",
    "softmax",
]

Mask = Bool[Tensor, "..."] | Float[Tensor, "..."] | None
Keep = Bool[Tensor, "..."] | None


def softmax(score: Float[Tensor, "... N M"], mask: Mask = None) -> Float[Tensor, "... N M"]:
    """As :func:`spec.attention.softmax`. Half types are computed in float32 and rounded once."""
    check_softmax(TENSORS, score, mask)
    bias, visible = bias_and_visible(mask, score.ndim)
    (scores,) = wide(score)
    seen = score != -torch.inf
    scores = scores if bias is None else scores + bias
    return weights_of(scores, seen if visible is None else seen & visible).to(score.dtype)


def dropout(weights: Float[Tensor, "..."], keep: Keep, p: float) -> Float[Tensor, "..."]:
    """As :func:`spec.attention.dropout`."""
    check_dropout(TENSORS, weights, keep, p)
    return weights.clone() if keep is None else dropped(weights, keep, p)


@lowered
def additive_attention(
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
    """
    As :func:`spec.attention.additive_attention`, by the path of :mod:`torch_impl.paths.fastest`;
    its own is the formula. Half types are computed in float32 and rounded once.
    """
    check_additive(TENSORS, (query, key, value, w_query, w_key, w_score), mask, keep, p)
    given = query, key, value, w_query, w_key, w_score
    if other := faster("additive_attention", *given, masks=(mask, keep)):
        return other(*given, mask, keep, p)
    return additive_formula(*given, mask, keep, p)


def additive_formula(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    w_query: Tensor,
    w_key: Tensor,
    w_score: Tensor,
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Tensor:
    """The same, spelled out."""
    bias, visible = bias_and_visible(mask, 3)
    q, k, v, *weights = wide(query, key, value, w_query, w_key, w_score)
    q, k, v = without_hidden(q, k, v, visible)
    lost = is_lost(visible is not None, None, k, v)
    if visible is not None and lost:
        score = seen_by_tanh(q, k, visible, *weights)
    else:
        score = additive(q, k, *weights)
    return weighted(score, v, bias, visible, keep, p, lost)[0].to(query.dtype)


@lowered
def scaled_dot_product_attention(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Tensor, "B H N E"]:
    """
    As :func:`spec.attention.scaled_dot_product_attention`.

    ``F.scaled_dot_product_attention`` with the kernel that PyTorch chooses. It takes no given draw:
    with ``keep`` the formula is spelled out. A kernel may have first derivatives alone: for one of
    a gradient take the eager function, or ``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)``.
    """
    check_attention(TENSORS, query, key, value, mask, keep, p)
    bias, visible = bias_and_visible(mask, 4)
    return fused_or_dropped(query, key, value, bias, visible, keep, p)


@lowered
def scaled_dot_product_attention_eager(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Tensor, "B H N E"]:
    """
    The same as product, softmax, product. Half types are computed in float32 and rounded once.
    """
    check_attention(TENSORS, query, key, value, mask, keep, p)
    bias, visible = bias_and_visible(mask, 4)
    return explicit(query, key, value, bias, visible, keep, p)[0]


def bias_and_visible(mask: Mask, ndim: int) -> tuple[Tensor | None, Tensor | None]:
    """
    A mask, with all its axes, as what is added and what is visible: a float mask is both, since
    -inf hides.
    """
    if mask is None:
        return None, None
    mask = mask[(None,) * (ndim - mask.ndim)]
    return (None, mask) if mask.dtype == torch.bool else (mask, mask != -torch.inf)


def without_hidden(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """
    Zeros for the queries that see no key and for the keys and values that no query sees.

    What is absent may be NaN, and a product of matrices turns a weight of 0 into NaN, forwards and
    backwards.
    """
    if visible is None:
        return query, key, value
    sees, seen = visible.any(-1, keepdim=True), visible.any(-2).unsqueeze(-1)
    return query.where(sees, 0), key.where(seen, 0), value.where(seen, 0)


def weights_of(score: Tensor, visible: Tensor | None) -> Tensor:
    """
    Softmax over what is visible. A row without keys goes through it as zeros, so that its gradient
    is no NaN, and is cleared after.
    """
    if visible is None:
        return torch.softmax(score, dim=-1)
    blind = ~visible.any(-1, keepdim=True)
    hidden = torch.where(blind, 0.0, -torch.inf).to(score.dtype)
    return torch.softmax(torch.where(visible, score, hidden), dim=-1).masked_fill(blind, 0.0)


def dropped(weights: Tensor, keep: Tensor | None, p: float) -> Tensor:
    return weights if keep is None else (weights / (1 - p)).where(keep, 0.0)


def explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    keep: Tensor | None = None,
    p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Output and weights, spelled out, in float32 where the inputs are half."""
    q, k, v = wide(*without_hidden(query, key, value, visible))
    lost = is_lost(visible is not None, bias, q, k, v)
    score = scaled_seen(q, k) if lost else scaled(q, k)
    output, weights = weighted(score, v, bias, visible, keep, p, lost)
    return output.to(query.dtype), weights.to(query.dtype)


def weighted(
    score: Tensor,
    value: Tensor,
    bias: Tensor | None,
    visible: Tensor | None,
    keep: Tensor | None,
    p: float,
    lost: bool,
) -> tuple[Tensor, Tensor]:
    """Output and weights of a score; ``lost``: what some rows see is not finite."""
    score = score if bias is None else score + bias
    if visible is None or not lost:
        weights = dropped(weights_of(score, visible).to(value.dtype), keep, p)
        return torch.matmul(weights, value), weights
    visible = visible & (score != -torch.inf)
    weights = dropped(weights_of(score, visible).to(value.dtype), keep, p).where(visible, 0)
    return sum_seen(weights, visible, value), weights


def fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
) -> Tensor:
    """
    The output by ``F.scaled_dot_product_attention``. A row without keys sees all of them inside,
    and is cleared after. PyTorch keeps NaN and infinity in a key or value from no row: where there
    are any under a mask, the formula is spelled out (:mod:`torch_impl.isolation` has the price).
    """
    if visible is None:
        return _by_pytorch(query, key, value, None if bias is None else as_mask(bias, query))
    sees = visible.any(-1, keepdim=True)
    if bias is None:
        mask = visible | ~sees
    else:
        bias = as_mask(bias, query)
        mask = torch.where(visible, bias, torch.where(sees, -torch.inf, 0.0).to(bias.dtype))
    query, key, value = without_hidden(query, key, value, visible)
    if is_lost(visible is not None, bias, query, key, value):
        return explicit(query, key, value, bias, visible)[0]
    mask = mask.expand(*mask.shape[:-2], query.shape[-2], key.shape[-2])
    return _by_pytorch(query, key, value, mask).where(sees, 0)


def _by_pytorch(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """
    ``F.scaled_dot_product_attention``, by its formula where PyTorch would take a kernel that has no
    derivative: no kernel knows tangents, and under vmap a CPU's does not see that its mask needs a
    gradient.
    """
    of_mask = is_batched(mask) and query.device.type == "cpu"
    with sdpa_kernel(SDPBackend.MATH) if of_mask or in_forward_mode() else nullcontext():
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def as_mask(bias: Tensor, query: Tensor) -> Tensor:
    """
    The bias in a dtype that SDPA takes: the query's, or float32 on a CPU. Only -inf hides: what
    would overflow in a narrower one is the lowest number.
    """
    if bias.dtype == query.dtype or (bias.dtype == torch.float32 and not query.is_cuda):
        return bias
    lowest = torch.finfo(query.dtype).min
    if torch.finfo(bias.dtype).min < lowest:
        bias = bias.clamp(min=lowest)
    return bias.to(query.dtype)


def fused_or_dropped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    visible: Tensor | None,
    keep: Tensor | None = None,
    p: float = 0.0,
) -> Tensor:
    """Fused, unless a draw is given: no kernel of PyTorch takes one."""
    if keep is None:
        return fused(query, key, value, bias, visible)
    return explicit(query, key, value, bias, visible, keep, p)[0]
