"""
Relative positions: the specification is :mod:`spec.relative`.

The position score is one product of the queries with a table whose rows are consecutive distances,
and one more row of zeros in front. So the product already stands in memory as the padded buffer of
:mod:`torch_impl.shifts`, and the shift is a view of it.
"""

from functools import partial
from math import sqrt
from typing import Any, overload

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attnverify.contract.arguments import check_even, check_sizes
from attnverify.contract.attention import (
    check_learned,
    check_learned_attention,
    check_transformer_xl,
    check_xl_attention,
)

from .arrays import TENSORS
from .attention import explicit, fused
from .flex_attention import flex
from .isolation import is_lost, reaches_neighbours, table_product
from .masks import causal_mask
from .paths.fastest import faster
from .scores import apart, scaled, wide
from .shifts import columns_read, skewed
from .transforms.autocast import lowered

__all__ = [
    "learned_relative_attention",
    "learned_relative_attention_eager",
    "learned_relative_attention_flex",
    "learned_relative_score",
    "sinusoidal_positions",
    "transformer_xl_attention",
    "transformer_xl_attention_eager",
    "transformer_xl_attention_flex",
    "transformer_xl_score",
]

Visible = Bool[Tensor, "..."] | None


def sinusoidal_positions(
    M: int, F: int, dtype: torch.dtype = torch.float32, device: Any = None
) -> Float[Tensor, "M F"]:
    """
    As :func:`spec.relative.sinusoidal_positions`, computed in float64 and rounded once, on
    PyTorch's default device unless told.
    """
    check_sizes(TENSORS, M=M, F=F)
    check_even(F)
    double = partial(torch.arange, dtype=torch.float64, device=device)
    angle = double(M - 1, -1, -1).unsqueeze(-1) * 10000.0 ** (double(F // 2) * (-2 / F))
    return torch.cat([angle.sin(), angle.cos()], dim=-1).to(dtype)


@lowered
def transformer_xl_score(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    position: Float[Tensor, "H M D"],
    u: Float[Tensor, "H D"],
    v: Float[Tensor, "H D"],
) -> Float[Tensor, "B H N M"]:
    """
    As :func:`spec.relative.transformer_xl_score`: two products, the second read through its shift
    while they are added.
    """
    check_transformer_xl(TENSORS, query, key, position, u, v)
    q, bias, _ = transformer_xl_terms(query, key, position, u, v)
    return (scaled(q, key) + bias).to(query.dtype)


@lowered
def transformer_xl_attention(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    position: Float[Tensor, "H M D"],
    u: Float[Tensor, "H D"],
    v: Float[Tensor, "H D"],
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """
    As :func:`spec.relative.transformer_xl_attention`, by the path of
    :mod:`torch_impl.paths.fastest`; its own has the shifted position score as float mask of SDPA.
    """
    check_xl_attention(TENSORS, (query, key, value), (position, u, v), visible)
    given = query, key, value, position, u, v
    if other := faster("transformer_xl_attention", *given, masks=(visible,)):
        return other(*given, visible)
    q, bias, seen = transformer_xl_terms(
        query, key, position, u, v, causal_and(visible, query, key)
    )
    return fused(q, key, value, bias, seen)


@lowered
def transformer_xl_attention_eager(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    position: Float[Tensor, "H M D"],
    u: Float[Tensor, "H D"],
    v: Float[Tensor, "H D"],
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """
    The same as products, shift, softmax, product. Half types are computed in float32 and rounded
    once.
    """
    check_xl_attention(TENSORS, (query, key, value), (position, u, v), visible)
    q, k, x, table, u, v = wide(query, key, value, position, u, v)
    q, bias, seen = transformer_xl_terms(q, k, table, u, v, causal_and(visible, query, key))
    return explicit(q, k, x, bias, seen)[0].to(query.dtype)


@lowered
def transformer_xl_attention_flex(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    position: Float[Tensor, "H M D"],
    u: Float[Tensor, "H D"],
    v: Float[Tensor, "H D"],
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """
    The same by flex_attention, which reads the position score at each pair; see
    :mod:`torch_impl.flex_attention` for CPUs.
    """
    check_xl_attention(TENSORS, (query, key, value), (position, u, v), visible)
    q, bias, seen = transformer_xl_terms(
        query, key, position, u, v, causal_and(visible, query, key)
    )
    return flex(q, key, value, lambda score, b, h, i, j: score + bias[b, h, i, j], seen)


def transformer_xl_terms(
    query: Tensor,
    key: Tensor,
    position: Tensor,
    u: Tensor,
    v: Tensor,
    visible: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The query of the content score, the position score, and what is visible."""
    bias = position_score(query + v.unsqueeze(-2), position, None, key.shape[-2], visible)
    return query + u.unsqueeze(-2), bias, visible


@lowered
def learned_relative_score(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    key_pos_embeddings: Float[Tensor, "2P H D"],
    key_pos_bias: Float[Tensor, "2P H"],
    query_pos_bias: Float[Tensor, "H D"],
    align: str,
) -> Float[Tensor, "B H N M"]:
    """
    As :func:`spec.relative.learned_relative_score`: two products, the second read through its shift
    while they are added.
    """
    tables = key_pos_embeddings, key_pos_bias, query_pos_bias
    check_learned(TENSORS, query, key, tables, align)
    q, bias, _ = learned_relative_terms(query, key, *tables, align)
    return (scaled(q, key) + bias).to(query.dtype)


@lowered
def learned_relative_attention(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    key_pos_embeddings: Float[Tensor, "2P H D"],
    key_pos_bias: Float[Tensor, "2P H"],
    query_pos_bias: Float[Tensor, "H D"],
    align: str,
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """
    As :func:`spec.relative.learned_relative_attention`, by the path of
    :mod:`torch_impl.paths.fastest`; its own has the shifted position score as float mask of SDPA.
    """
    tables = key_pos_embeddings, key_pos_bias, query_pos_bias
    check_learned_attention(TENSORS, (query, key, value), tables, align, visible)
    given = query, key, value, *tables
    if other := faster("learned_relative_attention", *given, masks=(visible,)):
        return other(*given, align, visible)
    q, bias, seen = learned_relative_terms(query, key, *tables, align, four_axes(visible))
    return fused(q, key, value, bias, seen)


@lowered
def learned_relative_attention_eager(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    key_pos_embeddings: Float[Tensor, "2P H D"],
    key_pos_bias: Float[Tensor, "2P H"],
    query_pos_bias: Float[Tensor, "H D"],
    align: str,
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """
    The same as products, shift, softmax, product. Half types are computed in float32 and rounded
    once.
    """
    tables = key_pos_embeddings, key_pos_bias, query_pos_bias
    check_learned_attention(TENSORS, (query, key, value), tables, align, visible)
    q, k, x = wide(query, key, value)
    table, bias, query_bias = wide(*tables)
    q, bias, seen = learned_relative_terms(q, k, table, bias, query_bias, align, four_axes(visible))
    return explicit(q, k, x, bias, seen)[0].to(query.dtype)


@lowered
def learned_relative_attention_flex(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    key_pos_embeddings: Float[Tensor, "2P H D"],
    key_pos_bias: Float[Tensor, "2P H"],
    query_pos_bias: Float[Tensor, "H D"],
    align: str,
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """
    The same by flex_attention, which reads the position score at each pair; see
    :mod:`torch_impl.flex_attention` for CPUs.
    """
    tables = key_pos_embeddings, key_pos_bias, query_pos_bias
    check_learned_attention(TENSORS, (query, key, value), tables, align, visible)
    q, bias, seen = learned_relative_terms(query, key, *tables, align, four_axes(visible))
    return flex(q, key, value, lambda score, b, h, i, j: score + bias[b, h, i, j], seen)


def learned_relative_terms(
    query: Tensor,
    key: Tensor,
    embeddings: Tensor,
    bias: Tensor,
    query_bias: Tensor,
    align: str,
    visible: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """
    The query of the content score, the position score, and what is visible. The tables are cut to
    the N + M - 1 rows that are read.
    """
    N, M, P = query.shape[2], key.shape[2], bias.shape[0] // 2
    first = P - (M if align == "end" else N) + 1
    rows = slice(first, first + N + M - 1)
    position = position_score(query, embeddings[rows].transpose(0, 1), bias[rows].T, M, visible)
    return query + query_bias.unsqueeze(-2), position, visible


def position_score(
    query: Tensor, table: Tensor, bias: Tensor | None, M: int, visible: Tensor | None
) -> Tensor:
    """
    (query . table + bias) / sqrt(D) with the row of each distance brought to its pair, [B H N M].

    ``table`` [H W D] has one row a distance and ``bias`` [H W]; a row of zeros in front of it makes
    the shift a view. A row that only hidden pairs read may be NaN and is cleared, as are queries
    that see no key. One product a head, over all the batch, with the scale inside of it.
    """
    B, H, N, D = query.shape
    table = F.pad(table, (0, 0, 1, 0))
    bias = torch.zeros_like(table[..., 0]) if bias is None else F.pad(bias, (1, 0))
    if visible is not None:
        query = query.where(visible.any(-1, keepdim=True), 0)
        read = columns_read(visible.any(0).expand(-1, N, M), table.shape[1])
        table, bias = table.where(read.unsqueeze(-1), 0), bias.where(read, 0)
    if reaches_neighbours(query, D, table.shape[1]):
        query, table, bias = wide(query, table, bias)
    has_gradient = torch.is_grad_enabled() and (query.requires_grad or table.requires_grad)
    hides = visible is not None or (has_gradient and N > 1)
    scale, lost = 1 / sqrt(D), is_lost(hides, bias, query, table)
    rows, table = apart(query.transpose(0, 1).reshape(H, B * N, D), table)
    add = table_product if lost else torch.baddbmm
    product = add(bias.unsqueeze(1), rows, table.mT, beta=scale, alpha=scale)
    return skewed(product.unflatten(1, (B, N)).transpose(0, 1), M)


@overload
def four_axes(visible: None) -> None: ...
@overload
def four_axes(visible: Tensor) -> Tensor: ...
def four_axes(visible: Visible) -> Tensor | None:
    return None if visible is None else visible[(None,) * (4 - visible.ndim)]


def causal_and(visible: Visible, query: Tensor, key: Tensor) -> Bool[Tensor, "B H N M"]:
    """
    What a causal row sees, with four axes that may be 1: no key behind it, and none that
    ``visible`` hides.
    """
    causal = causal_mask(query.shape[-2], key.shape[-2], device=query.device)
    return four_axes(causal if visible is None else causal & visible)
