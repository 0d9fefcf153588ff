"""Numbers that are stored in eight bits, and what they mean."""

from typing import Annotated

import numpy as np
from jaxtyping import Float, Int8
from numpy import ndarray

from attnverify.contract.quantized import check_stored

from .arrays import ARRAYS
from .domains import Choices, Integers, Refused

__all__ = ["dequantize"]

Stored = Annotated[Int8[ndarray, "... N D"], Integers(-128, 127, dtype="int8")]
StoredAs = Annotated[str, Choices("float8_e4m3fn", "int8"), Refused("float8_e5m2", None)]


def dequantize(
    stored: Stored, scale: Float[ndarray, "... N"], stored_as: StoredAs
) -> Float[ndarray, "... N D"]:
    r"""
    The numbers of a cache that holds eight bits for each: what is stored, times the scale of its
    row.

    .. math:: y_{nd} = s_n\, \operatorname{number}(x_{nd})

    .. math:: \operatorname{number}(x) = (-1)^\sigma \begin{cases} 2^{e - 7} (1 + m / 8) & e > 0 \\
              2^{-6}\, m / 8 & e = 0 \end{cases}

    1. The scale multiplies; it never divides. A scale of 0 gives zeros, a negative one turns signs.
    2. Each row has its own scale, in every leading axis. One scale for a token, a head or a whole
       cache is given for each of its rows; runs of channels with scales of their own are rows.
    3. "int8": the eight bits are an integer from -128 to 127 in two's complement.
    4. "float8_e4m3fn": they are a sign, four bits e and three bits m, from the highest bit down,
       as in the second formula. 448 is the largest; there is no infinity; all seven bits below the
       sign set are NaN.
    5. There is no default for ``stored_as``: the bits do not say it. ``stored`` has int8 either
       way; another dtype of it, and another word, is a ValueError.
    6. The product is rounded once, to the dtype of the scale. What was lost when the numbers were
       stored is no part of this.

    >>> bits = np.array([[1, 0x38, 0x7E, -2]], np.int8)
    >>> dequantize(bits, np.array([0.5]), "int8").tolist()
    [[0.5, 28.0, 63.0, -1.0]]
    >>> dequantize(bits, np.array([0.5]), "float8_e4m3fn").tolist()
    [[0.0009765625, 0.5, 224.0, -224.0]]
    >>> dequantize(np.array([[0x7F]], np.int8), np.array([0.0]), "float8_e4m3fn").item()
    nan

    Source: the OCP's 8-bit floating point specification, 2023, whose E4M3 it is; the scales of
    caches in FlashAttention 3, FlashInfer and vLLM, which multiply.

    Errata: vLLM keeps float8 in uint8, PyTorch in dtypes of its own: the bits are these. On AMD's
    older devices a float8_e4m3fnuz of the same bits is half as large.
    """
    check_stored(ARRAYS, stored, scale, stored_as)
    y = np.zeros(stored.shape, scale.dtype)
    for place in np.ndindex(stored.shape):
        y[place] = scale[place[:-1]] * number(int(stored[place]), stored_as)
    return y


def number(bits: int, stored_as: str) -> float:
    """What eight bits mean (:func:`dequantize`, clauses 3 and 4)."""
    if stored_as == "int8":
        return bits
    sign = -1.0 if bits < 0 else 1.0
    e, m = bits >> 3 & 15, bits & 7
    if e == 15 and m == 7:
        return np.nan
    return sign * (2.0 ** (e - 7) * (1 + m / 8) if e else 2.0**-6 * m / 8)
