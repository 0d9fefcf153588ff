"""
Numbers that are stored in eight bits: the specification is :mod:`spec.quantized`.
"""

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from attnverify.contract.quantized import check_stored

from .arrays import TENSORS
from .scores import wide

__all__ = ["dequantize"]


def dequantize(
    stored: Int8[Tensor, "... N D"], scale: Float[Tensor, "... N"], stored_as: str
) -> Float[Tensor, "... N D"]:
    """
    As :func:`spec.quantized.dequantize`: PyTorch's own float8 of the same bits. Half types are
    multiplied in float32 and rounded once.
    """
    check_stored(TENSORS, stored, scale, stored_as)
    (factor,) = wide(scale)
    numbers = stored if stored_as == "int8" else stored.view(torch.float8_e4m3fn)
    return (numbers.to(factor.dtype) * factor[..., None]).to(scale.dtype)
