"""Scores: the specification is :mod:`spec.scores`."""

from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnverify.contract.attention import ADDITIVE_SCORE, SCALED_SCORE
from attnverify.contract.shapes import check

from .arrays import TENSORS
from .transforms.autocast import lowered

__all__ = ["additive_score", "scaled_dot_product_score"]


def wide(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Half types widened to float32, exactly; float32, float64 and None as they are."""
    half = (torch.float16, torch.bfloat16)
    return tuple(x.float() if x is not None and x.dtype in half else x for x in tensors)


def apart(*factors: Tensor) -> tuple[Tensor, ...]:
    """
    The factors of a product over their last axis, filled up with zeros where rows could run into
    each other.

    oneDNN's bfloat16 products on a CPU read on past the end of a row whose width is no multiple of
    32 and multiply what they find by zero (seen in PyTorch 2.13 with AMX): a NaN in the next row,
    or in memory that belongs to nobody, would reach this one.
    """
    short = -factors[0].shape[-1] % 32
    if short == 0 or factors[0].dtype != torch.bfloat16 or factors[0].is_cuda:
        return factors
    return tuple(F.pad(x, (0, short)) for x in factors)


def spaced(x: Tensor) -> Tensor:
    """
    x as the first factor of a product that PyTorch makes on its own, in a submodule: in rows that
    are followed by zeros where such a product could read on past their end (:func:`apart`).

    The zeros stand in the storage beyond each row; in an autocast region x is rounded here, for the
    submodule would round it into rows without them.
    """
    if x.device.type != "cpu" or x.shape[-1] % 32 == 0 or x.dtype == torch.float64:
        return x
    if torch.is_autocast_enabled("cpu"):
        x = x.to(torch.get_autocast_dtype("cpu"))
    width = x.shape[-1]
    return apart(x)[0][..., :width] if x.dtype == torch.bfloat16 else x


@lowered
def additive_score(
    query: Float[Tensor, "... N Q"],
    key: Float[Tensor, "... M K"],
    w_query: Float[Tensor, "A Q"],
    w_key: Float[Tensor, "A K"],
    w_score: Float[Tensor, "A"],
) -> Float[Tensor, "... N M"]:
    """
    As :func:`spec.scores.additive_score`. Half types are computed in float32 and rounded once.
    """
    check(TENSORS, ADDITIVE_SCORE, query, key, w_query, w_key, w_score)
    return additive(*wide(query, key, w_query, w_key, w_score)).to(query.dtype)


def additive(query: Tensor, key: Tensor, w_query: Tensor, w_key: Tensor, w_score: Tensor) -> Tensor:
    """
    The score, so many queries at a time that the hidden layer of one block stays in a cache: three
    times as fast on a CPU. A compiler, which knows no lengths, makes blocks of its own.
    """
    q, k = F.linear(query, w_query), F.linear(key, w_key).unsqueeze(-3)
    if torch.compiler.is_compiling():
        return torch.matmul(torch.tanh(q.unsqueeze(-2) + k), w_score)
    queries = max(1, (2**26 if k.is_cuda else 2**20) // k.numel())
    blocks = [
        torch.matmul((part.unsqueeze(-2) + k).tanh_(), w_score) for part in q.split(queries, dim=-2)
    ]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-2)


@lowered
def scaled_dot_product_score(
    query: Float[Tensor, "... N D"], key: Float[Tensor, "... M D"]
) -> Float[Tensor, "... N M"]:
    """As :func:`spec.scores.scaled_dot_product_score`."""
    check(TENSORS, SCALED_SCORE, query, key)
    return scaled(query, key)


def scaled(query: Tensor, key: Tensor) -> Tensor:
    """
    q.k / sqrt(D) in one pass: the scale is applied to the accumulators, so that half types are
    rounded once.
    """
    (N, D), M = query.shape[-2:], key.shape[-2]
    q, k = apart(query.reshape(-1, N, D), key.reshape(-1, M, D))
    return torch.baddbmm(query.new_zeros(1), q, k.mT, beta=0, alpha=1 / sqrt(D)).view(
        *query.shape[:-1], M
    )
