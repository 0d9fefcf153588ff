"""
Seed 001's classes as ``torch.nn.Module``: the functions of this column with parameters of their
own.

The names of a ``state_dict`` are those of the specification's ``parameters``; one with PyTorch's or
the source's names is loaded too (:mod:`torch_impl.modules.state_dicts`). Projections are submodules
and are called, batch first, so that hooks, parametrizations and whatever is put in their place
take part. Dropout acts on the weights, in train mode only. Nothing is kept from one call to the
next. ``implementation`` says what computes the attention
(:mod:`torch_impl.paths.selectable_attentions`), whatever the device; what it does not support is
NotImplementedError.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attnverify.contract.arguments import check_heads, check_mask, check_sizes
from attnverify.contract.attention import ADDITIVE, HEADS
from attnverify.contract.shapes import check, pattern

from ..arrays import TENSORS
from ..isolation import reaches_neighbours
from ..layers import _multi_head_attention, _self_attention
from ..paths.selectable_attentions import known, named
from ..projections import Projections, affine
from ..scores import spaced
from . import state_dicts
from .dropout import draw, share
from .initialisation import describe, empty, fill_like_linear, reset_children
from .layouts import layout, visible_where_not

__all__ = [
    "AdditiveAttention",
    "MultiHeadAttention",
    "MultiHeadSelfAttention",
    "ScaledDotProductAttention",
    "SelfAttention",
    "calling",
]

ONE_HEAD = pattern("query [B N D], key [B M D], value [B M E]")


class AdditiveAttention(nn.Module):
    """
    Seed 001, section 2. ``query [B N Q], key [B M K], value [B M E]``, batch first as there;
    attn_mask: True = hidden, or float.

    Erratum: the seed's own option is ``drouput``; every other class of it has ``dropout``.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        dropout: float = 0.0,
        implementation: str = "torch",
        device: Any = None,
        dtype: torch.dtype | None = None,
        **misspelt: Any,
    ) -> None:
        super().__init__()
        if misspelt:
            raise refusal_of(misspelt)
        check_sizes(TENSORS, query_size=query_size, key_size=key_size, hidden_size=hidden_size)
        self.dropout, self.implementation = share(dropout), known(implementation)
        self.query_size, self.key_size, self.hidden_size = query_size, key_size, hidden_size
        made = partial(empty, device=device, dtype=dtype)
        self.w_query, self.w_key = made(hidden_size, query_size), made(hidden_size, key_size)
        self.w_score = made(hidden_size)
        self.register_load_state_dict_pre_hook(state_dicts.additive)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin anew, as ``nn.Linear`` does."""
        for weight in (self.w_query, self.w_key, self.w_score):
            fill_like_linear(weight)

    def extra_repr(self) -> str:
        return describe(self, "query_size", "key_size", "hidden_size", "dropout")

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        weights = self.w_query, self.w_key, self.w_score
        check(TENSORS, ADDITIVE, query, key, value, *weights, Q=self.query_size, K=self.key_size)
        shape = *query.shape[:-1], key.shape[-2]
        check_mask(TENSORS, "attn_mask", attn_mask, shape, float_too=True)
        drop = draw(self, *shape, like=query)
        return named(self.implementation).additive(
            query, key, value, *weights, visible_where_not(attn_mask), **drop
        )


def refusal_of(misspelt: dict[str, Any]) -> Exception:
    if "drouput" in misspelt:
        return ValueError(
            "drouput: wanted dropout, which seed 001 misspells here alone, got "
            f"drouput={misspelt['drouput']!r}"
        )
    return TypeError(f"unexpected keyword arguments: {', '.join(misspelt)}")


class ScaledDotProductAttention(nn.Module):
    """
    Seed 001, section 2. ``[B N D]`` as there, or ``[B H N D]``; attn_mask: True = hidden, or float.
    """

    def __init__(self, dropout: float = 0.0, implementation: str = "torch") -> None:
        super().__init__()
        self.dropout, self.implementation = share(dropout), known(implementation)

    def extra_repr(self) -> str:
        return describe(self, "dropout")

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        heads = isinstance(query, Tensor) and query.ndim == 4
        check(TENSORS, HEADS if heads else ONE_HEAD, query, key, value)
        shape = *query.shape[:-1], key.shape[-2]
        check_mask(TENSORS, "attn_mask", attn_mask, shape, float_too=True)
        mask = visible_where_not(attn_mask)
        if not heads:
            query, key, value = (x.unsqueeze(1) for x in (query, key, value))
            mask = mask.unsqueeze(1) if mask is not None and mask.ndim == 3 else mask
        drop = draw(self, *query.shape[:-1], key.shape[-2], like=query)
        output = named(self.implementation).scaled(query, key, value, mask, **drop)
        return output if heads else output.squeeze(1)


class SelfAttention(nn.Module):
    """
    Seed 001, section 3. ``x [B N F]``, batch first as there unless told otherwise; attn_mask [N N]
    or [B N N]: True = hidden, or float.
    """

    def __init__(
        self,
        embed_dim: int,
        key_size: int,
        value_size: int,
        dropout: float = 0.0,
        batch_first: bool = True,
        implementation: str = "torch",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(TENSORS, embed_dim=embed_dim, key_size=key_size, value_size=value_size)
        self.dropout, self.implementation = share(dropout), known(implementation)
        self.embed_dim, self.key_size, self.value_size = embed_dim, key_size, value_size
        self.batch_first = batch_first
        made = partial(empty, device=device, dtype=dtype)
        self.w_query, self.w_key = made(key_size, embed_dim), made(key_size, embed_dim)
        self.w_value = made(value_size, embed_dim)
        self.register_load_state_dict_pre_hook(state_dicts.self_attention)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin anew, as ``nn.Linear`` does."""
        for weight in (self.w_query, self.w_key, self.w_value):
            fill_like_linear(weight)

    def extra_repr(self) -> str:
        return describe(self, "embed_dim", "key_size", "value_size", "dropout", "batch_first")

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        order = layout(self.batch_first)
        check(TENSORS, order.x, x, F=self.embed_dim)
        x = order.turn(x)
        B, N = x.shape[:2]
        check_mask(TENSORS, "attn_mask", attn_mask, (B, N, N), float_too=True)
        projections = [
            partial(affine, weight=weight) for weight in (self.w_query, self.w_key, self.w_value)
        ]
        drop = draw(self, B, 1, N, N, like=x)
        mask = visible_where_not(attn_mask)
        output = _self_attention(
            x, projections, mask, **drop, attentions=named(self.implementation)
        )
        return order.turn(output)


class MultiHeadAttention(nn.Module):
    """
    Seed 001, section 4. Output and weights [B H N M]; attn_mask and key_padding_mask as in
    ``nn.MultiheadAttention``: True = hidden.

    The sequence comes first, ``[N B F]``, unless ``batch_first`` is given. With need_weights=False
    the weights are None, which is all that the blocked paths and the Triton kernels can give.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        implementation: str = "torch",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(TENSORS, embed_dim=embed_dim)
        check_heads(TENSORS, embed_dim, num_heads)
        self.implementation, self.dropout = known(implementation), share(dropout)
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        linear = partial(nn.Linear, embed_dim, embed_dim, bias, device=device, dtype=dtype)
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (linear() for _ in range(4))
        self.register_load_state_dict_pre_hook(state_dicts.multi_head)

    def reset_parameters(self) -> None:
        """Begin anew, as the projections do."""
        reset_children(self)

    def extra_repr(self) -> str:
        return describe(self, "embed_dim", "num_heads", "dropout", "batch_first")

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        order = layout(self.batch_first)
        check(TENSORS, order.cross, query, key, value, F=self.embed_dim)
        q, k, v = (order.turn(x) for x in (query, key, value))
        drop = draw(self, q.shape[0], self.num_heads, q.shape[1], k.shape[1], like=q)
        projections = calling(self.q_proj, self.k_proj, self.v_proj, self.out_proj)
        inputs = q, k, v, projections, self.num_heads, attn_mask, key_padding_mask
        output, weights = _multi_head_attention(
            *inputs, **drop, attentions=named(self.implementation), need_weights=need_weights
        )
        return order.turn(output), weights


def calling(*modules: nn.Module) -> Projections:
    """Projections by these submodules."""
    return Projections(*(partial(call_spaced, module) for module in modules))


def call_spaced(module: nn.Module, x: Tensor) -> Tensor:
    """The module's answer, in float32 where a row of NaN would reach its neighbour."""
    kind, weights = x.device.type, dict(module.named_parameters())
    in_region = kind == "cpu" and torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if in_region else x.dtype
    widths = [n for weight in weights.values() if weight.ndim == 2 for n in weight.shape]
    if not reaches_neighbours(x.to(dtype), *widths):
        return module(spaced(x))
    wide = {name: weight.to(dtype).float() for name, weight in weights.items()}
    with torch.autocast(kind, enabled=False):
        return functional_call(module, wide, (spaced(x.to(dtype).float()),)).to(dtype)


class MultiHeadSelfAttention(MultiHeadAttention):
    """Seed 001, section 4.4: query, key and value are the same x."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        implementation: str = "torch",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = dropout, bias, batch_first, implementation, device, dtype
        super().__init__(embed_dim, num_heads, *options)
        self.register_load_state_dict_pre_hook(state_dicts.multi_head_self)

    def forward(  # type: ignore[override]  # one x, as the source document has it
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        check(TENSORS, layout(self.batch_first).x, x, F=self.embed_dim)
        return super().forward(x, x, x, attn_mask, key_padding_mask, need_weights)
