"""
labml's layers as ``torch.nn.Module``, seeds 000, 002 and 004; what
:mod:`torch_impl.modules.attention_modules` says of modules holds for them too.

The sequence comes first, ``[N B F]``, unless ``batch_first`` is given.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnverify.contract.arguments import check_align, check_heads, check_sizes
from attnverify.contract.masks import check_square
from attnverify.contract.shapes import check

from ..arrays import TENSORS
from ..layers import _alibi_multi_head_attention, _relative_multi_head_attention
from ..paths.selectable_attentions import known, named
from ..projections import Projections
from .attention_modules import calling
from .dropout import draw, share
from .initialisation import describe, empty, reset_children
from .layouts import layout

__all__ = ["AlibiMultiHeadAttention", "PrepareForMultiHeadAttention", "RelativeMultiHeadAttention"]


class PrepareForMultiHeadAttention(nn.Module):
    """labml's wrapper around a projection: it is why a name reads ``query.linear.weight``."""

    def __init__(
        self,
        d_model: int,
        bias: bool,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, d_model, bias, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Begin anew, as ``nn.Linear`` does."""
        reset_children(self)

    def forward(self, x: Tensor) -> Tensor:
        """The projection [B N F]; the layer splits it into heads."""
        return self.linear(x)


class LabmlMultiHeadAttention(nn.Module):
    """
    What labml's two layers share: three projections, the output, and masks [N M], [N M B] or
    [N M B H] with True = visible.
    """

    described: tuple[str, ...] = ()
    """What else a layer says of itself."""

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
        check_sizes(TENSORS, d_model=d_model)
        check_heads(TENSORS, d_model, heads, "heads")
        self.implementation, self.dropout = known(implementation), share(dropout_prob)
        self.heads, self.d_model, self.batch_first = heads, d_model, batch_first
        self.query = PrepareForMultiHeadAttention(d_model, bias, **factory)
        self.key = PrepareForMultiHeadAttention(d_model, bias, **factory)
        self.value = PrepareForMultiHeadAttention(d_model, True, **factory)
        self.output = nn.Linear(d_model, d_model, **factory)

    def reset_parameters(self) -> None:
        """Begin anew, as the projections do."""
        reset_children(self)

    def extra_repr(self) -> str:
        return describe(self, "heads", "d_model", "dropout", "batch_first", *self.described)

    def projections(self) -> Projections:
        return calling(self.query, self.key, self.value, self.output)

    def drawn(self, query: Tensor, key: Tensor) -> dict[str, Any]:
        sizes = query.shape[0], self.heads, query.shape[1], key.shape[1]
        return draw(self, *sizes, like=query)


class RelativeMultiHeadAttention(LabmlMultiHeadAttention):
    """
    labml's, seeds 000 and 002; ``align`` chooses between the two ("end" and "start"), P is the
    largest distance.
    """

    described = "align", "P"

    def __init__(
        self,
        heads: int,
        d_model: int,
        dropout_prob: float = 0.1,
        align: str = "end",
        P: int = 2**12,
        batch_first: bool = False,
        implementation: str = "torch",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = heads, d_model, dropout_prob, False, batch_first, implementation
        super().__init__(*options, device=device, dtype=dtype)
        check_sizes(TENSORS, P=P)
        check_align(align)
        self.align, self.P, made = align, P, partial(empty, device=device, dtype=dtype)
        self.key_pos_embeddings = made(2 * P, heads, d_model // heads)
        self.key_pos_bias, self.query_pos_bias = made(2 * P, heads), made(heads, d_model // heads)
        self.reset_tables()

    def reset_parameters(self) -> None:
        """Begin anew, as the projections do, and with zeros in the tables."""
        super().reset_parameters()
        self.reset_tables()

    def reset_tables(self) -> None:
        for table in (self.key_pos_embeddings, self.key_pos_bias, self.query_pos_bias):
            nn.init.zeros_(table)

    def forward(
        self, *, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        order = layout(self.batch_first)
        check(TENSORS, order.cross, query, key, value, F=self.d_model)
        q, k, v = (order.turn(x) for x in (query, key, value))
        visible = order.visible(mask, q.shape[0], self.heads, q.shape[1], k.shape[1])
        tables = self.key_pos_embeddings, self.key_pos_bias, self.query_pos_bias
        inputs = q, k, v, self.projections(), tables, self.heads, self.align, visible
        output = _relative_multi_head_attention(
            *inputs, **self.drawn(q, k), attentions=named(self.implementation)
        )
        return order.turn(output)


class AlibiMultiHeadAttention(LabmlMultiHeadAttention):
    """
    labml's, seed 004; the mask [N N] or [N N 1] is required, and every call computes the biases of
    its own mask.

    They count the visible keys, so that they are a float mask [H N N] for every implementation: no
    slope times a distance.
    """

    def __init__(
        self,
        heads: int,
        d_model: int,
        dropout_prob: float = 0.1,
        batch_first: bool = False,
        implementation: str = "torch",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = heads, d_model, dropout_prob, True, batch_first, implementation
        super().__init__(*options, device=device, dtype=dtype)

    def forward(self, *, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        order = layout(self.batch_first)
        check(TENSORS, order.same, query, key, value, F=self.d_model)
        q, k, v = (order.turn(x) for x in (query, key, value))
        visible = mask[..., 0] if isinstance(mask, Tensor) and mask.shape[2:] == (1,) else mask
        check_square(TENSORS, visible, q.shape[1], "mask")
        inputs = q, k, v, self.projections(), self.heads, visible
        output = _alibi_multi_head_attention(
            *inputs, **self.drawn(q, k), attentions=named(self.implementation)
        )
        return order.turn(output)
