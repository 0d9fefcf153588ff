"""
Attention of inner products in blocks that stay in a cache: the specification is
:mod:`spec.attention`, :mod:`spec.alibi` and :mod:`spec.relative`.

Written for CPUs: no N x M tensor exists, forwards or backwards, and a block
(:mod:`torch_impl.blocked.tiles`) costs a dozen calls of PyTorch. A block of n queries reads
n + M - 1 consecutive rows of the table of its positions; its product with them stands in memory so
that the shift is a view of it (:mod:`torch_impl.blocked.operators`). Half types are computed in
float32 and rounded once. Derivatives are those of the first order, in reverse mode.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnverify.contract.attention import (
    check_attention,
    check_learned_attention,
    check_visible_heads,
    check_xl_attention,
)

from ..alibi import distance_biases, slopes
from ..arrays import TENSORS
from ..attention import Keep, Mask, bias_and_visible, explicit
from ..relative import (
    Visible,
    causal_and,
    four_axes,
    position_score,
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
from . import operators
from .operators import Options, Terms
from .tiles import present

__all__ = [
    "alibi_attention_blocked",
    "learned_relative_attention_blocked",
    "scaled_dot_product_attention_blocked",
    "transformer_xl_attention_blocked",
]


@lowered
def scaled_dot_product_attention_blocked(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    mask: Mask = None,
    keep: Keep = None,
    p: float = 0.0,
) -> Float[Tensor, "B H N E"]:
    """As :func:`spec.attention.scaled_dot_product_attention`."""
    check_attention(TENSORS, query, key, value, mask, keep, p)
    return attention(query, key, value, mask, keep, share=1 / (1 - p))


@lowered
def alibi_attention_blocked(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """As :func:`spec.alibi.alibi_attention`: the distances of one block serve all."""
    check_visible_heads(TENSORS, query, key, value, visible)
    return attention(
        query, key, value, visible, causal=True, steep=slopes(query.shape[1], query.device)
    )


@lowered
def transformer_xl_attention_blocked(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    position: Float[Tensor, "H M D"],
    u: Float[Tensor, "H D"],
    v: Float[Tensor, "H D"],
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """As :func:`spec.relative.transformer_xl_attention`: the shift is a view of each block."""
    check_xl_attention(TENSORS, (query, key, value), (position, u, v), visible)
    return _transformer_xl_attention(query, key, value, position, u, v, visible)


def _transformer_xl_attention(
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
    """The same with the draw of a dropout, for the layers."""
    biases: dict[str, Any] = {
        "content": u,
        "distance": v,
        "table": position,
        "first": query.shape[2] - 1,
    }
    return attention(query, key, value, visible, keep, causal=True, share=1 / (1 - p), **biases)


@lowered
def learned_relative_attention_blocked(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B H M D"],
    value: Float[Tensor, "B H M E"],
    key_pos_embeddings: Float[Tensor, "2P H D"],
    key_pos_bias: Float[Tensor, "2P H"],
    query_pos_bias: Float[Tensor, "H D"],
    align: str,
    visible: Visible = None,
) -> Float[Tensor, "B H N E"]:
    """As :func:`spec.relative.learned_relative_attention`: the shift is a view of each block."""
    tables = key_pos_embeddings, key_pos_bias, query_pos_bias
    check_learned_attention(TENSORS, (query, key, value), tables, align, visible)
    return _learned_relative_attention(query, key, value, *tables, align, visible)


def _learned_relative_attention(
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
    """The same with the draw of a dropout, for the layers."""
    N, M, P = query.shape[2], key.shape[2], table_bias.shape[0] // 2
    behind = M - N if align == "end" else 0
    # those that are read; the first query meets the first key at row N - 1 of them
    rows = slice(P - behind - N + 1, P - behind + M)
    tables: dict[str, Any] = {
        "content": query_bias,
        "table": embeddings[rows].transpose(0, 1),
        "bias": table_bias[rows].T,
        "first": N - 1,
    }
    return attention(query, key, value, visible, keep, share=1 / (1 - p), **tables)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    keep: Tensor | None = None,
    causal: bool = False,
    steep: Tensor | None = None,
    content: Tensor | None = None,
    distance: Tensor | None = None,
    table: Tensor | None = None,
    bias: Tensor | None = None,
    first: int = 0,
    share: float = 1.0,
) -> Tensor:
    """
    The output in the dtype of the query; zeros stand in for all that is absent, which may be NaN.
    """
    mask, keep = four_axes(mask), four_axes(keep)
    if mask is not None:  # without one nothing is absent but queries before the first key
        W = 0 if table is None else table.shape[1]
        sees, seen, read = present(mask.detach(), query.shape[2], key.shape[2], causal, first, W)
        query, key, value = query.where(sees, 0), key.where(seen, 0), value.where(seen, 0)
        table = None if table is None else table.where(read, 0)
        bias = None if bias is None else bias.where(read[..., 0], 0)
    q, k, x, *shared = wide(query, key, value, content, distance, table, bias)
    steep = None if steep is None else steep.to(q.dtype)
    given = q, k, x, mask, keep, steep, *shared, causal, first, share
    out, _, _ = applied(Blocked, *IN_WORDS, *given)
    return out.to(query.dtype)


IN_WORDS = (
    "an attention in blocks",
    "the attention of that name that ends in _eager (a module: implementation='eager')",
)


FACTORS = ("query", "key", "value", "mask", "content", "distance", "table", "bias")
"""What a gradient may be taken by, in the order of the gradients."""


def later_derivatives(
    found: list[Tensor],
    d_output: Tensor,
    saved: tuple[Tensor, ...],
    at: Terms,
    options: Options,
    mask_too: bool,
) -> list[Tensor]:
    """The gradients, whose own derivatives are those of the formula, or in torch.func refused."""
    if not torch.is_grad_enabled() or not may_look(d_output) or is_functorch_wrapped(d_output):
        return first_derivatives(*IN_WORDS, found, d_output, *saved)
    names = [name for name in FACTORS if name != "mask" or mask_too]
    given = {name: x for name in names if (x := getattr(at, name)) is not None}

    def output(*tensors: Tensor) -> Tensor:
        return formula(at._replace(**dict(zip(given, tensors, strict=True))), options)

    return derivatives_of_formula(output, found, d_output, *given.values())


def formula(at: Terms, options: Options) -> Tensor:
    """The output without blocks."""
    bias, visible = bias_and_visible(at.mask, 4)
    M = at.key.shape[2]
    if options.causal:
        visible = causal_and(visible, at.query, at.key)
    added = [x for x in (bias,) if x is not None]
    if at.steep is not None:
        added.append(distance_biases(at.query, at.key))
    if at.table is not None:
        q = at.query if at.distance is None else at.query + at.distance[:, None]
        added.append(position_score(q, at.table, at.bias, M, visible))
    q = at.query if at.content is None else at.query + at.content[:, None]
    total = sum(added[1:], added[0]) if added else None
    return explicit(q, at.key, at.value, total, visible, at.keep, 1 - 1 / options.share)[0]


class Blocked(torch.autograd.Function):
    """Keeps the output and two numbers a row; the backward pass computes the scores again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        keep: Tensor | None,
        steep: Tensor | None,
        content: Tensor | None,
        distance: Tensor | None,
        table: Tensor | None,
        bias: Tensor | None,
        causal: bool,
        first: int,
        share: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All by name: torch.compile counts them, to see whether a context comes first."""
        biases = content, distance, table, bias
        return operators.attention(
            query, key, value, mask, keep, steep, *biases, causal, first, share
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.causal, ctx.first, ctx.share = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output, *tensors)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        saved, mask_too = ctx.saved_tensors, ctx.needs_input_grad[3]
        at, options = Terms(*saved[3:]), Options(ctx.causal, ctx.first, ctx.share)
        with torch.no_grad():
            found = operators.attention_grad(d_output, *saved, *options, mask_too)
        grads = iter(later_derivatives(found, d_output, saved, at, options, mask_too))
        *_, mask, _, _, content, distance, table, bias = saved
        d_heads = [next(grads) for _ in range(3)]
        d_mask = next(grads).to(mask.dtype) if mask_too else None
        shared = (None if x is None else next(grads) for x in (content, distance, table, bias))
        return *d_heads, d_mask, None, None, *shared, None, None, None
