"""Numbers that are stored in eight bits, as whole arrays."""

import cupy
from jaxtyping import Float, Int8

from attnverify.contract.quantized import check_stored

from .arrays import ARRAYS, Array, ieee, narrow, wide

__all__ = ["dequantize"]


@ieee
def dequantize(
    stored: Int8[Array, "... N D"], scale: Float[Array, "... N"], stored_as: str
) -> Float[Array, "... N D"]:
    """
    See :func:`spec.quantized.dequantize`.

    CuPy has no float8: its bits are moved to where a float16 has them.
    """
    check_stored(ARRAYS, stored, scale, stored_as)
    (factor,) = wide(scale)
    numbers = stored if stored_as == "int8" else from_float8(stored)
    return narrow(numbers.astype(factor.dtype) * factor[..., None], scale.dtype)


def from_float8(stored: Int8[Array, "..."]) -> Float[Array, "..."]:
    """
    Bits of a float8_e4m3fn as float32: as a float16 their exponent is 8 too low, and NaN is the
    one number beyond.
    """
    xp = cupy.get_array_module(stored)
    bits = stored.astype("int16")
    halves = ((bits & 0x80) << 8 | (bits & 0x7F) << 7).astype("int16").view("float16")
    numbers = halves.astype("float32") * xp.float32(256)
    return xp.where((bits & 0x7F) == 0x7F, xp.float32(xp.nan), numbers)
