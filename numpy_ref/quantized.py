"""Numbers that are stored in eight bits, looked up in a table of all of them."""

from functools import cache

import numpy as np
from jaxtyping import Float, Int8
from numpy import ndarray

from attnverify.contract.quantized import check_stored

from .arrays import ARRAYS
from .rounding import rounds_once

__all__ = ["dequantize"]


@rounds_once
def dequantize(
    stored: Int8[ndarray, "... N D"], scale: Float[ndarray, "... N"], stored_as: str
) -> Float[ndarray, "... N D"]:
    """
    See :func:`spec.quantized.dequantize`.
    """
    check_stored(ARRAYS, stored, scale, stored_as)
    numbers = stored if stored_as == "int8" else table()[stored.view(np.uint8)]
    return numbers.astype(scale.dtype) * scale[..., None]


@cache
def table() -> ndarray:
    """What each of the 256 patterns of a float8_e4m3fn means."""
    e, m = np.divmod(np.arange(127), 8)
    positive = np.ldexp(np.where(e > 0, 8 + m, m), np.maximum(e, 1) - 10)
    half = np.append(positive, np.nan)
    return np.concatenate([half, -half])
