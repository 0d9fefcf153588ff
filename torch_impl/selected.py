"""
Attention over the blocks of keys that each row has chosen: the specification is
:mod:`spec.selected`.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnverify.contract.attention import check_once, check_selected

from .arrays import TENSORS
from .grouped import bias_and_pairs, spelled_out
from .transforms.autocast import lowered

__all__ = ["selected_attention"]


@lowered
def selected_attention(
    query: Float[Tensor, "B H N D"],
    key: Float[Tensor, "B G M D"],
    value: Float[Tensor, "B G M E"],
    selection: Int[Tensor, "B G N J"],
    block: int,
    soft_cap: float | None = None,
    sink: Float[Tensor, "H"] | None = None,
    scale: float | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "B H N E"], Float[Tensor, "B H N"]]:
    """
    As :func:`spec.selected.selected_attention`, spelled out: a grouped attention under the mask of
    what is chosen. Half types are computed in float32 and rounded once. What the choices are is
    looked at first, which waits for the device.
    """
    check_selected(TENSORS, query, key, value, selection, block, soft_cap, sink, scale)
    mask = chosen(query, key, selection, block)
    _, visible = bias_and_pairs(query, key, mask, options)
    return spelled_out(query, key, value, None, visible, soft_cap, sink, scale, None, 0.0)


def chosen(query: Tensor, key: Tensor, selection: Tensor, block: int) -> Bool[Tensor, "B H N M"]:
    """Choices scattered over the blocks, behind a place for -1, and spread over their keys."""
    M, at = key.shape[2], selection.long() + 1
    times = at.new_zeros(*at.shape[:-1], 1 - (-M // block))
    times = times.scatter_add(-1, at, torch.ones_like(at))[..., 1:]
    check_once(times)
    shown = (times > 0)[..., torch.arange(M, device=key.device) // block]
    return shown.repeat_interleave(query.shape[1] // key.shape[1], 1)
