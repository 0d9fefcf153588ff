"""
Transformer-XL as ``torch.nn.Module``: the attention layer, and the stack that carries a memory from
segment to segment.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..layers import _transformer_xl_layer, check_segment, positions_of
from ..memory import Mems, init_mems, update_mems
from ..selectable_attentions import named
from ..shapes import check_heads
from .attention_modules import batch_in_front, draw, heads_in_front, share

__all__ = ["TransformerXL", "TransformerXLLayer"]


class TransformerXLLayer(nn.Module):
    """
    Seed 003's relative multi-head attention, with u and v as parameters of its own.

    x and mem [N B F] and [S B F], position [M F], mask [N M], [N M B] or [N M B H] with
    True = visible. The memory is detached.
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
        **factory: Any,
    ) -> None:
        super().__init__()
        check_heads(embed_size, num_heads)
        self.attentions = named(implementation)
        self.num_heads, self.dropout, self.eps, self.batch_first = (
            num_heads,
            share(dropout),
            eps,
            batch_first,
        )
        self.qkv_net = nn.Linear(embed_size, 3 * embed_size, bias, **factory)
        self.r_net = nn.Linear(embed_size, embed_size, bias, **factory)
        self.o_net = nn.Linear(embed_size, embed_size, bias, **factory)
        self.layer_norm = nn.LayerNorm(embed_size, eps, bias=bias, **factory)
        self.u = nn.Parameter(
            torch.empty(num_heads, embed_size // num_heads, **factory).normal_(std=0.02)
        )
        self.v = nn.Parameter(
            torch.empty(num_heads, embed_size // num_heads, **factory).normal_(std=0.02)
        )

    def forward(
        self, x: Tensor, position: Tensor, mem: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        x, mem = (
            batch_in_front(x, self.batch_first),
            batch_in_front(None if mem is None else mem.detach(), self.batch_first),
        )
        visible, parameters = heads_in_front(mask, self.batch_first), dict(self.named_parameters())
        drop = draw(self, len(x), self.num_heads, x.shape[1], len(position), like=x)
        inputs = x, position, parameters, self.num_heads, mem, visible, self.eps
        y = _transformer_xl_layer(*inputs, **drop, attentions=self.attentions)
        return batch_in_front(y, self.batch_first)


class TransformerXL(nn.Module):
    """
    A stack of layers over one segment x [N B F]: the last hidden state, and the memory [S B F] of
    every layer for the next call.
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
        **factory: Any,
    ) -> None:
        super().__init__()
        self.mem_len, self.embed_size, self.batch_first = mem_len, embed_size, batch_first
        options = num_heads, embed_size, dropout, bias, eps, batch_first, implementation
        self.layers = nn.ModuleList(TransformerXLLayer(*options, **factory) for _ in range(n_layer))

    def init_mems(self, batch: int) -> Mems:
        """Zeros for the segment before the first one; None where mem_len is 0."""
        like = next(self.parameters())
        mems = init_mems(
            len(self.layers),
            self.mem_len,
            batch,
            self.embed_size,
            dtype=like.dtype,
            device=like.device,
        )
        return self.turned(mems)

    def forward(self, x: Tensor, mems: Mems = None) -> tuple[Tensor, Mems]:
        segment, memory = batch_in_front(x, self.batch_first), self.turned(mems)
        check_segment(segment, list(self.layers), memory)
        hids, position = [x], positions_of(segment, memory)
        memories: Sequence[Tensor | None] = mems or [None for _ in self.layers]
        for layer, mem in zip(self.layers, memories, strict=True):
            hids.append(layer(hids[-1], position, mem))
        return hids[-1], self.turned(update_mems(self.turned(hids[:-1]), memory, self.mem_len))

    def turned(self, tensors: Any) -> Any:
        """A list of tensors between the layout of this module and batch first."""
        return (
            [batch_in_front(x, self.batch_first) for x in tensors]
            if isinstance(tensors, (list, tuple))
            else tensors
        )
