"""
What only some rows see may be NaN or infinity and reaches no other row: how the paths that are
plain PyTorch keep the specification's sentence, pair by pair.

A weight of 0 times NaN is NaN, forwards in the product with the values and backwards in those with
keys, queries and tables of positions. So whoever has a mask looks first, or a table whose gradient
is taken: one reading of query, key, value, table and bias, and on a GPU one wait for the device.
Only where something is not finite are numbers that are not taken
out of the products and put back pair by pair, a product more for each such key and in general
slower. Whoever cannot look does not: in what is compiled, exported or captured as a graph, and
under ``vmap``, all that some row sees is taken to be finite.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .scores import additive, scaled
from .transforms.derivatives import may_look

__all__ = [
    *("finite", "is_lost", "no_number", "scaled_seen", "seen_by_tanh", "sum_seen"),
    "reaches_neighbours",
    "table_product",
]


def is_lost(hides: bool, bias: Tensor | None, *factors: Tensor) -> bool:
    """
    Whether a factor of an attention in which not every row sees everything (``hides``) holds NaN or
    infinity, or what is added to its scores does, of which minus infinity is none.
    """
    if not hides or not may_look(*factors):
        return False
    with torch.no_grad():
        found = torch.stack([_total(x) for x in factors]).isfinite().all()
        if bias is not None:
            found = found & (bias.amax() < torch.inf)
        return not bool(found)


def _total(x: Tensor) -> Tensor:
    """The sum of all elements, in float64: finite where they are, but for what ends a format."""
    return x.detach().sum(dtype=torch.promote_types(x.dtype, torch.float32)).double()


def reaches_neighbours(x: Tensor, *widths: int) -> bool:
    """
    Whether a product of x, or one of its gradients, over one of these widths may take a row of NaN
    to the next row: of bfloat16 on a CPU, where the width is odd (torch 2.13 on an Intel Xeon with
    AVX-512 and no products of bfloat16).
    """
    is_half = x.dtype == torch.bfloat16 and x.device.type == "cpu"
    return is_half and any(width % 2 for width in widths)


class _Finite(torch.autograd.Function):
    """x with 0 for NaN and infinity; every derivative passes, also where a number was replaced."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.where(x.isfinite(), 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> Tensor:
        return d_output

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent.clone()


def finite(x: Tensor) -> Tensor:
    """x with 0 for NaN and infinity, as if these were numbers that somebody has added."""
    found: Tensor = _Finite.apply(x)
    return found


class _NoNumber(torch.autograd.Function):
    """x; its gradient is NaN where 0 times what is not finite makes it so."""

    @staticmethod
    def forward(x: Tensor, where: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor, None]:
        return d_output.masked_fill(ctx.saved_tensors[0], torch.nan), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return tangent.clone()


def no_number(x: Tensor, where: Tensor) -> Tensor:
    """x, whose gradient is no number at these places."""
    found: Tensor = _NoNumber.apply(x, where)
    return found


def _with_lost(score: Tensor, raw: Tensor) -> Tensor:
    """
    A score of finite factors, with what is lost of the raw one: a constant, since a visible pair
    carries it to the weights of its row, and by them to every gradient of the row.
    """
    return score + raw.where(~raw.isfinite(), 0)


def scaled_seen(query: Tensor, key: Tensor) -> Tensor:
    """q.k / sqrt(D) whose gradient at a pair of score gradient 0 is 0, whatever its factors are."""
    return _with_lost(scaled(finite(query), finite(key)), scaled(query.detach(), key.detach()))


def table_product(bias: Tensor, rows: Tensor, table: Tensor, beta: float, alpha: float) -> Tensor:
    """``torch.baddbmm``, likewise."""
    given = bias, rows, table
    score = torch.baddbmm(*(finite(x) for x in given), beta=beta, alpha=alpha)
    return _with_lost(score, torch.baddbmm(*(x.detach() for x in given), beta=beta, alpha=alpha))


def seen_by_tanh(
    query: Tensor,
    key: Tensor,
    visible: Tensor,
    w_query: Tensor,
    w_key: Tensor,
    w_score: Tensor,
) -> Tensor:
    """The additive score, the columns of keys that are not finite for the rows that see them."""
    score = additive(query, key.where(key.isfinite(), 0), w_query, w_key, w_score)
    q, columns = F.linear(query, w_query), torch.arange(key.shape[-2], device=key.device)
    for j in _not_finite(key):
        seen = key[..., j, None, :].where(visible[..., j, None], 0)
        column = torch.matmul(torch.tanh(q + F.linear(seen, w_key)), w_score)
        score = torch.where(columns == j, column.unsqueeze(-1), score)
    return score


class _Product(torch.autograd.Function):
    """
    weights @ value. What arrives at a row may be no number, where a layer norm follows, and reaches
    no value that the row does not see.
    """

    @staticmethod
    def forward(weights: Tensor, visible: Tensor, value: Tensor) -> Tensor:
        return torch.matmul(weights, value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor, None, Tensor]:
        weights, visible, value = ctx.saved_tensors
        seen = visible.expand(weights.shape).mT
        return torch.matmul(d_output, value.mT), None, sum_seen(weights.mT, seen, d_output)

    @staticmethod
    def jvp(ctx: Any, d_weights: Tensor, d_visible: None, d_value: Tensor) -> Tensor:
        weights, _, value = ctx.saved_tensors
        return torch.matmul(d_weights, value) + torch.matmul(weights, d_value)


def sum_seen(weights: Tensor, visible: Tensor, value: Tensor) -> Tensor:
    """weights @ value over the visible pairs: one product, and one a key that is not finite."""
    weights = weights.where(visible, 0)
    total: Tensor = _Product.apply(weights, visible, value.where(value.isfinite(), 0))
    for j in _not_finite(value):
        x, at = value[..., j, None, :], slice(j, j + 1)
        lost = x.where(_column(visible, at) & ~x.isfinite(), 0)
        total = total + weights[..., at] * lost
    return total


def _column(visible: Tensor, at: slice) -> Tensor:
    return visible[..., at] if visible.shape[-1] > 1 else visible


def _not_finite(x: Tensor) -> list[int]:
    """The keys [... M E] that are not finite in some head of some batch entry."""
    bad = ~x.detach().isfinite().all(-1)
    return torch.nonzero(bad.flatten(0, -2).any(0)).flatten().tolist()
