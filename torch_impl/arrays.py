"""What this column takes for an array: PyTorch's tensors, a tracer's too."""

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from attnverify.contract.arrays import BOOL, FLOAT, INTEGER, Arrays

__all__ = ["TENSORS"]


class Tensors(Arrays):
    """Tensors on any device: a check looks at no number there and costs no synchronisation."""

    noun = "tensor"

    def kind(self, thing: Any) -> str:
        """Tell floats, booleans and integers by PyTorch's dtypes."""
        if not isinstance(thing, Tensor):
            return ""
        if thing.dtype.is_floating_point:
            return FLOAT
        if thing.dtype == torch.bool:
            return BOOL
        return "" if thing.dtype.is_complex else INTEGER

    def is_integer(self, number: Any) -> bool:
        """Whether a number is a whole one; a compiler's is a symbol, a tracer's a tensor."""
        tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        kinds = (Integral, torch.SymInt, Tensor) if tracing else (Integral, torch.SymInt)
        return isinstance(number, kinds) and not isinstance(number, bool)

    def describe(self, thing: Any) -> str:
        """What came, in a few words: dtype and shape of a tensor, otherwise the type."""
        is_tensor = isinstance(thing, Tensor)
        return f"{thing.dtype} {tuple(thing.shape)}" if is_tensor else type(thing).__name__


TENSORS = Tensors()
