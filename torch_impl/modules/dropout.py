"""The dropout of the modules: the share that is dropped, and a draw for each call in train mode."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from attnverify.contract.arguments import check_probability

__all__ = ["draw", "share"]


def share(dropout: Any) -> float:
    """Hold the share that is dropped to [0, 1)."""
    check_probability("dropout", dropout)
    return float(dropout)


def draw(module: nn.Module, *shape: int, like: Tensor) -> dict[str, Any]:
    """The weights that a dropout keeps this time; nothing in eval mode."""
    p = cast(float, module.dropout)
    if not module.training or p == 0:
        return {}
    return {"keep": torch.rand(shape, device=like.device) >= p, "p": p}
