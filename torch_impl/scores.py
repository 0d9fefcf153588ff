"""Scores: the law is :mod:`spec.scores`."""

from math import sqrt

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from torch_impl.shapes import check, pattern

__all__ = ["additive_score", "scaled_dot_product_score"]

ADDITIVE = pattern("query [... N Q], key [... M K], w_query [A Q], w_key [A K], w_score [A]")
SCALED = pattern("query [... N D], key [... M D]")


def wide(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Half types widened to float32, exactly; float32, float64 and None as they are."""
    half = (torch.float16, torch.bfloat16)
    return tuple(x.float() if x is not None and x.dtype in half else x for x in tensors)


def additive_score(
    query: Float[Tensor, "... N Q"],
    key: Float[Tensor, "... M K"],
    w_query: Float[Tensor, "A Q"],
    w_key: Float[Tensor, "A K"],
    w_score: Float[Tensor, "A"],
) -> Float[Tensor, "... N M"]:
    """As :func:`spec.scores.additive_score`. Half types are computed in float32 and rounded once; holds [... N M A] in memory."""
    check(ADDITIVE, query, key, w_query, w_key, w_score)
    return additive(*wide(query, key, w_query, w_key, w_score)).to(query.dtype)


def additive(query: Tensor, key: Tensor, w_query: Tensor, w_key: Tensor, w_score: Tensor) -> Tensor:
    q, k = F.linear(query, w_query), F.linear(key, w_key)
    return torch.matmul((q.unsqueeze(-2) + k.unsqueeze(-3)).tanh_(), w_score)


def scaled_dot_product_score(query: Float[Tensor, "... N D"], key: Float[Tensor, "... M D"]) -> Float[Tensor, "... N M"]:
    """As :func:`spec.scores.scaled_dot_product_score`. Half types are computed in float32 and rounded once."""
    check(SCALED, query, key)
    return scaled(*wide(query, key)).to(query.dtype)


def scaled(query: Tensor, key: Tensor) -> Tensor:
    return torch.matmul(query, key.mT) / sqrt(query.shape[-1])
