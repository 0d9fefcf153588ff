"""
Transformer-XL as ``torch.nn.Module``: the attention layer, and the stack that carries a memory from
segment to segment; what :mod:`torch_impl.modules.attention_modules` says of modules holds for them
too.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnverify.contract.arguments import (
    check_eps,
    check_heads,
    check_integer,
    check_list,
    check_sizes,
)
from attnverify.contract.layers import POSITION
from attnverify.contract.shapes import check

from ..arrays import TENSORS
from ..layers import _transformer_xl_layer, hidden_states, positions_of
from ..memory import Mems, init_mems, update_mems
from ..paths.selectable_attentions import known, named
from ..projections import Project, TransformerXLParts, feed_forward, normalised
from . import state_dicts
from .attention_modules import call_spaced
from .dropout import draw, share
from .initialisation import describe, empty, reset_children
from .layouts import layout

__all__ = ["TransformerXL", "TransformerXLLayer"]


class LayerNorm(nn.LayerNorm):
    """PyTorch's, with the gradients of weight and bias added up in float32 at least."""

    def forward(self, x: Tensor) -> Tensor:
        return normalised(x, self.weight, self.bias, self.eps)


class TransformerXLLayer(nn.Module):
    """
    Seed 003's relative multi-head attention, with u and v as parameters of its own; ``bias`` is
    that of the projections. With ``feed_forward``, its inner width, the position-wise feed-forward
    follows: two linear maps with a ReLU between them, residual, norm.

    x and mem [N B F] and [S B F], position [M F], mask [N M], [N M B] or [N M B H] with
    True = visible; all but the position batch first where ``batch_first`` is given. The memory is
    detached.
    """

    def __init__(
        self,
        num_heads: int,
        embed_size: int,
        dropout: float = 0.0,
        bias: bool = True,
        eps: float = 1e-5,
        batch_first: bool = False,
        implementation: str = "torch",
        device: Any = None,
        dtype: torch.dtype | None = None,
        feed_forward: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes(TENSORS, embed_size=embed_size)
        check_inner_width(feed_forward)
        check_heads(TENSORS, embed_size, num_heads)
        check_eps(eps)
        self.implementation, self.dropout = known(implementation), share(dropout)
        self.num_heads, self.embed_size, self.batch_first = num_heads, embed_size, batch_first
        factory = {"device": device, "dtype": dtype}
        self.qkv_net = nn.Linear(embed_size, 3 * embed_size, bias, **factory)
        self.r_net = nn.Linear(embed_size, embed_size, bias, **factory)
        self.o_net = nn.Linear(embed_size, embed_size, bias, **factory)
        self.layer_norm = LayerNorm(embed_size, eps, **factory)
        self.feed_forward = feed_forward
        if feed_forward is not None:
            self.ff_in = nn.Linear(embed_size, feed_forward, **factory)
            self.ff_out = nn.Linear(feed_forward, embed_size, **factory)
            self.ff_norm = LayerNorm(embed_size, eps, **factory)
        of_head = num_heads, embed_size // num_heads
        self.u, self.v = empty(*of_head, **factory), empty(*of_head, **factory)
        self.register_load_state_dict_pre_hook(state_dicts.transformer_xl_layer)
        self.reset_biases()

    def reset_parameters(self) -> None:
        """Begin anew, as the projections and the norm do, with small u and v."""
        reset_children(self)
        self.reset_biases()

    def reset_biases(self) -> None:
        for bias in (self.u, self.v):
            nn.init.normal_(bias, std=0.02)

    def extra_repr(self) -> str:
        option = () if self.feed_forward is None else ("feed_forward",)
        return describe(self, "num_heads", "embed_size", "dropout", "batch_first", *option)

    def forward(
        self, x: Tensor, position: Tensor, mem: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        order = layout(self.batch_first)
        check(TENSORS, order.x_and_mem, x, mem, F=self.embed_size)
        x, mem = order.turn(x), None if mem is None else order.turn(mem.detach())
        (B, N), S = x.shape[:2], 0 if mem is None else mem.shape[1]
        check(TENSORS, POSITION, position, M=S + N, F=self.embed_size)
        visible = order.visible(mask, B, self.num_heads, N, S + N)
        drop = draw(self, B, self.num_heads, N, S + N, like=x)
        inputs = x, position, self.parts(), self.num_heads, mem, visible
        return order.turn(
            _transformer_xl_layer(*inputs, **drop, attentions=named(self.implementation))
        )

    def parts(self) -> TransformerXLParts:
        return TransformerXLParts(
            self.query_key_value,
            partial(call_spaced, self.r_net),
            partial(call_spaced, self.o_net),
            self.layer_norm,
            self.u,
            self.v,
            self.feeding(),
        )

    def feeding(self) -> Project | None:
        """What follows the norm, if anything does."""
        if self.feed_forward is None:
            return None
        inner, outer = partial(call_spaced, self.ff_in), partial(call_spaced, self.ff_out)
        return feed_forward(inner, outer, self.ff_norm)

    def query_key_value(self, x: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One call of qkv_net; of the queries of the memory nobody asks."""
        query, key, value = call_spaced(self.qkv_net, keys).chunk(3, dim=-1)
        return query[:, keys.shape[1] - x.shape[1] :], key, value


class TransformerXL(nn.Module):
    """
    A stack of layers over one segment x [N B F]: the last hidden state, and the memory [S B F] of
    every layer for the next call.

    Each layer is attention, residual and norm, and a feed-forward of an inner width where
    ``feed_forward`` gives one. Positions are sinusoids in the dtype of x.
    """

    def __init__(
        self,
        n_layer: int,
        num_heads: int,
        embed_size: int,
        mem_len: int,
        dropout: float = 0.0,
        bias: bool = True,
        eps: float = 1e-5,
        batch_first: bool = False,
        implementation: str = "torch",
        device: Any = None,
        dtype: torch.dtype | None = None,
        feed_forward: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes(TENSORS, n_layer=n_layer)
        check_integer(TENSORS, "mem_len", mem_len, least=0)
        self.mem_len, self.embed_size, self.batch_first = mem_len, embed_size, batch_first
        self.implementation, self.dropout = known(implementation), share(dropout)
        options = num_heads, embed_size, dropout, bias, eps, batch_first, implementation
        more = {"device": device, "dtype": dtype, "feed_forward": feed_forward}
        self.layers = nn.ModuleList(TransformerXLLayer(*options, **more) for _ in range(n_layer))
        self.register_load_state_dict_pre_hook(state_dicts.transformer_xl)

    def reset_parameters(self) -> None:
        """Begin anew, layer by layer."""
        reset_children(self.layers)

    def extra_repr(self) -> str:
        return describe(self, "embed_size", "mem_len", "batch_first", "dropout")

    def init_mems(self, batch: int) -> Mems:
        """Zeros for the segment before the first one; None where mem_len is 0."""
        like = next(self.parameters())
        sizes = len(self.layers), self.mem_len, batch, self.embed_size
        return self.turned(init_mems(*sizes, dtype=like.dtype, device=like.device))

    def forward(self, x: Tensor, mems: Mems = None) -> tuple[Tensor, Mems]:
        order = layout(self.batch_first)
        if mems is not None:
            check_list(TENSORS, "mems", mems, len(self.layers))
        x_and_mems = order.x + tuple(
            order.x_and_mem[1]._replace(name=f"mems.{layer}", optional=False)
            for layer in range(len(mems or ()))
        )
        check(TENSORS, x_and_mems, x, *(mems or ()), F=self.embed_size)
        segment, memory = order.turn(x), self.turned(mems)
        *hids, output = hidden_states(x, list(self.layers), positions_of(segment, memory), mems)
        return output, self.turned(update_mems([order.turn(x) for x in hids], memory, self.mem_len))

    def turned(self, mems: Mems) -> Mems:
        """A list of tensors between the layout of this module and batch first."""
        return None if mems is None else [layout(self.batch_first).turn(mem) for mem in mems]


def check_inner_width(feed_forward: Any) -> None:
    """Hold the inner width of a feed-forward to the integers from 1 upwards, or to None."""
    if feed_forward is not None:
        check_sizes(TENSORS, feed_forward=feed_forward)
