"""
Parameters of a module's own, what they begin with, and what a module says of itself.

A module is built with empty parameters and filled by its ``reset_parameters``, so that one built on
the meta device and moved by ``to_empty`` is filled as if it had been built there.
"""

from math import sqrt
from typing import Any

import torch
from torch import nn

__all__ = ["describe", "empty", "fill_like_linear", "reset_children"]


def empty(*shape: int, device: Any = None, dtype: torch.dtype | None = None) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))


def fill_like_linear(weight: nn.Parameter) -> None:
    """The entries that ``nn.Linear`` begins with."""
    bound = 1 / sqrt(weight.shape[-1])
    nn.init.uniform_(weight, -bound, bound)


def describe(module: nn.Module, *names: str) -> str:
    """What ``extra_repr`` says of these attributes, and of how the attention is computed."""
    return ", ".join(f"{name}={getattr(module, name)!r}" for name in (*names, "implementation"))


def reset_children(module: nn.Module) -> None:
    """Reset every submodule that knows how to."""
    for child in module.children():
        if callable(reset := getattr(child, "reset_parameters", None)):
            reset()
