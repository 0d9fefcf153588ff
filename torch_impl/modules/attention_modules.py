"""
The source documents' classes as ``torch.nn.Module``: the functions of this column with parameters
of their own.

The sequence comes first, ``[N B F]``, unless ``batch_first`` is given; the names of a
``state_dict`` are those of the law's ``parameters``. Dropout acts on the weights, in train mode
only. Nothing is kept from one call to the next. ``implementation="triton"`` computes the attention
by the fused Triton kernels, whatever the device; what they do not support is NotImplementedError.
"""

from math import sqrt
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..layers import (
    _alibi_multi_head_attention,
    _multi_head_attention,
    _relative_multi_head_attention,
    _self_attention,
)
from ..selectable_attentions import named
from ..shapes import check_heads

__all__ = [
    "AdditiveAttention",
    "AlibiMultiHeadAttention",
    "MultiHeadAttention",
    "MultiHeadSelfAttention",
    "RelativeMultiHeadAttention",
    "ScaledDotProductAttention",
    "SelfAttention",
]


def batch_in_front(x: Any, batch_first: bool) -> Any:
    """[N B F] to [B N F], and back; what is no such tensor is left to the checks."""
    return x if batch_first or not isinstance(x, Tensor) or x.ndim < 2 else x.transpose(0, 1)


def visible_where_not(attn_mask: Any) -> Any:
    """
    PyTorch's and seed 001's polarity to the law's: a boolean attn_mask is True where hidden, a
    float one is added.
    """
    return (
        ~attn_mask if isinstance(attn_mask, Tensor) and attn_mask.dtype == torch.bool else attn_mask
    )


def heads_in_front(mask: Any, batch_first: bool) -> Any:
    """
    labml's [N M], [N M B] or [N M B H] to [B H N M]; with batch_first the mask is one already.
    """
    if batch_first or not isinstance(mask, Tensor) or mask.ndim < 3:
        return mask
    return mask.permute(2, 0, 1).unsqueeze(1) if mask.ndim == 3 else mask.permute(2, 3, 0, 1)


def draw(module: nn.Module, *shape: int, like: Tensor) -> dict[str, Any]:
    """The weights that a dropout keeps this time; nothing in eval mode."""
    p = cast(float, module.dropout)
    if not module.training or p == 0:
        return {}
    return {"keep": torch.rand(shape, device=like.device) >= p, "p": p}


def share(dropout: Any) -> float:
    if not (isinstance(dropout, (int, float)) and 0 <= dropout < 1):
        raise ValueError(f"dropout: wanted a number with 0 <= dropout < 1, got {dropout!r}")
    return float(dropout)


def projection(out: int, width: int, **factory: Any) -> nn.Parameter:
    """A matrix with the entries that ``nn.Linear`` begins with."""
    return nn.Parameter(
        torch.empty(out, width, **factory).uniform_(-1 / sqrt(width), 1 / sqrt(width))
    )


class AdditiveAttention(nn.Module):
    """
    Seed 001, section 2. ``query [B N Q], key [B M K], value [B M E]``, batch first as there;
    attn_mask: True = hidden, or float.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        dropout: float = 0.0,
        implementation: str = "torch",
        **factory: Any,
    ) -> None:
        super().__init__()
        self.dropout, self.attentions = share(dropout), named(implementation)
        self.w_query = projection(hidden_size, query_size, **factory)
        self.w_key = projection(hidden_size, key_size, **factory)
        self.w_score = nn.Parameter(projection(1, hidden_size, **factory).detach()[0])

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        drop = draw(self, *query.shape[:-1], key.shape[-2], like=query)
        weights = self.w_query, self.w_key, self.w_score
        return self.attentions.additive(
            query, key, value, *weights, visible_where_not(attn_mask), **drop
        )


class ScaledDotProductAttention(nn.Module):
    """
    Seed 001, section 2. ``[B N D]`` as there, or ``[B H N D]``; attn_mask: True = hidden, or float.
    """

    def __init__(self, dropout: float = 0.0, implementation: str = "torch") -> None:
        super().__init__()
        self.dropout, self.attentions = share(dropout), named(implementation)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        mask, one_head = visible_where_not(attn_mask), query.ndim == 3
        if one_head:
            query, key, value = (x.unsqueeze(1) for x in (query, key, value))
            mask = mask.unsqueeze(1) if mask is not None and mask.ndim == 3 else mask
        drop = draw(self, *query.shape[:-1], key.shape[-2], like=query)
        output = self.attentions.scaled(query, key, value, mask, **drop)
        return output.squeeze(1) if one_head else output


class SelfAttention(nn.Module):
    """Seed 001, section 3. attn_mask [N N] or [B N N]: True = hidden, or float."""

    def __init__(
        self,
        embed_dim: int,
        key_size: int,
        value_size: int,
        dropout: float = 0.0,
        batch_first: bool = False,
        implementation: str = "torch",
        **factory: Any,
    ) -> None:
        super().__init__()
        self.dropout, self.batch_first, self.attentions = (
            share(dropout),
            batch_first,
            named(implementation),
        )
        self.w_query = projection(key_size, embed_dim, **factory)
        self.w_key = projection(key_size, embed_dim, **factory)
        self.w_value = projection(value_size, embed_dim, **factory)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        x = batch_in_front(x, self.batch_first)
        drop = draw(self, len(x), 1, x.shape[1], x.shape[1], like=x)
        mask, parameters = visible_where_not(attn_mask), dict(self.named_parameters())
        output = _self_attention(x, parameters, mask, **drop, attentions=self.attentions)
        return batch_in_front(output, self.batch_first)


class MultiHeadAttention(nn.Module):
    """
    Seed 001, section 4. Output and weights [B H N M]; attn_mask and key_padding_mask as in
    ``nn.MultiheadAttention``: True = hidden.

    With need_weights=False the weights are None, which is all that the Triton kernels can give.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        implementation: str = "torch",
        **factory: Any,
    ) -> None:
        super().__init__()
        check_heads(embed_dim, num_heads)
        self.attentions = named(implementation)
        self.num_heads, self.dropout, self.batch_first = num_heads, share(dropout), batch_first
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias, **factory)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias, **factory)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias, **factory)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias, **factory)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = (batch_in_front(x, self.batch_first) for x in (query, key, value))
        drop = draw(self, len(q), self.num_heads, q.shape[1], k.shape[1], like=q)
        inputs = q, k, v, dict(self.named_parameters()), self.num_heads, attn_mask, key_padding_mask
        output, weights = _multi_head_attention(
            *inputs, **drop, attentions=self.attentions, need_weights=need_weights
        )
        return batch_in_front(output, self.batch_first), weights


class MultiHeadSelfAttention(MultiHeadAttention):
    """Seed 001, section 4.4: query, key and value are the same x."""

    def forward(  # type: ignore[override]  # one x, as the source document has it
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        return super().forward(x, x, x, attn_mask, key_padding_mask, need_weights)


class PrepareForMultiHeadAttention(nn.Module):
    """labml's wrapper around a projection: it is why a name reads ``query.linear.weight``."""

    def __init__(self, d_model: int, bias: bool, **factory: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, d_model, bias, **factory)


class LabmlMultiHeadAttention(nn.Module):
    """
    What labml's two layers share: three projections, the output, and masks [N M], [N M B] or
    [N M B H] with True = visible.
    """

    def __init__(
        self,
        heads: int,
        d_model: int,
        dropout_prob: float,
        bias: bool,
        batch_first: bool,
        implementation: str = "torch",
        **factory: Any,
    ) -> None:
        super().__init__()
        check_heads(d_model, heads)
        self.attentions = named(implementation)
        self.heads, self.dropout, self.batch_first = heads, share(dropout_prob), batch_first
        self.query = PrepareForMultiHeadAttention(d_model, bias, **factory)
        self.key = PrepareForMultiHeadAttention(d_model, bias, **factory)
        self.value = PrepareForMultiHeadAttention(d_model, True, **factory)
        self.output = nn.Linear(d_model, d_model, **factory)


class RelativeMultiHeadAttention(LabmlMultiHeadAttention):
    """
    labml's, seeds 000 and 002; ``align`` chooses between the two ("end" and "start"), P is the
    largest distance.
    """

    def __init__(
        self,
        heads: int,
        d_model: int,
        dropout_prob: float = 0.1,
        align: str = "end",
        P: int = 2**12,
        batch_first: bool = False,
        implementation: str = "torch",
        **factory: Any,
    ) -> None:
        super().__init__(
            heads, d_model, dropout_prob, False, batch_first, implementation, **factory
        )
        self.align = align
        self.key_pos_embeddings = nn.Parameter(
            torch.zeros(2 * P, heads, d_model // heads, **factory)
        )
        self.key_pos_bias = nn.Parameter(torch.zeros(2 * P, heads, **factory))
        self.query_pos_bias = nn.Parameter(torch.zeros(heads, d_model // heads, **factory))

    def forward(
        self, *, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        q, k, v = (batch_in_front(x, self.batch_first) for x in (query, key, value))
        drop = draw(self, len(q), self.heads, q.shape[1], k.shape[1], like=q)
        visible, parameters = heads_in_front(mask, self.batch_first), dict(self.named_parameters())
        inputs = q, k, v, parameters, self.heads, self.align, visible
        output = _relative_multi_head_attention(*inputs, **drop, attentions=self.attentions)
        return batch_in_front(output, self.batch_first)


class AlibiMultiHeadAttention(LabmlMultiHeadAttention):
    """
    labml's, seed 004; the mask [N N] or [N N 1] is required, and every call computes the biases of
    its own mask.

    They count the visible keys, so that they are a float mask [H N N] for the Triton kernels too:
    no slope times a distance.
    """

    def __init__(
        self,
        heads: int,
        d_model: int,
        dropout_prob: float = 0.1,
        batch_first: bool = False,
        implementation: str = "torch",
        **factory: Any,
    ) -> None:
        super().__init__(heads, d_model, dropout_prob, True, batch_first, implementation, **factory)

    def forward(self, *, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (batch_in_front(x, self.batch_first) for x in (query, key, value))
        visible = (
            mask[..., 0]
            if isinstance(mask, Tensor) and mask.ndim == 3 and mask.shape[-1] == 1
            else mask
        )
        drop = draw(self, len(q), self.heads, q.shape[1], k.shape[1], like=q)
        inputs = q, k, v, dict(self.named_parameters()), self.heads, visible
        output = _alibi_multi_head_attention(*inputs, **drop, attentions=self.attentions)
        return batch_in_front(output, self.batch_first)
