"""Conventions of numbers that are stored in eight bits: which format it is, what a scale does."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.conventions.layer_rows import Row, with_arguments
from attnverify.conventions.references import reference_of

dequantize = reference_of("dequantize")
changed = partial(with_arguments, dequantize)
INT8, FLOAT8 = "int8", "float8_e4m3fn"


def times(numbers: Callable[[ndarray], ndarray], stored_as: str, /, **x: Any) -> Any:
    """The bits of one format read otherwise, from 0 to 255, and those of the other one rightly."""
    if x["stored_as"] != stored_as:
        return dequantize(**x)
    return numbers(x["stored"].astype(np.int64) & 255) * x["scale"][..., None]


def float8(bits: ndarray, bias: int = 7, mantissa: int = 3) -> ndarray:
    """A sign, an exponent and a mantissa of so many bits, every pattern of them a number."""
    e, m = np.divmod(bits & 127, 2**mantissa)
    size = np.ldexp(np.where(e > 0, 2**mantissa + m, m), np.maximum(e, 1) - bias - mantissa)
    return np.where(bits > 127, -size, size)


def e5m2(bits: ndarray) -> ndarray:
    """Two bits of mantissa; infinities and NaN at the end."""
    low = bits & 127
    found = float8(bits, 15, 2)
    found = np.where(low == 124, np.copysign(np.inf, found), found)
    return np.where(low > 124, np.nan, found)


def fnuz(bits: ndarray) -> ndarray:
    """AMD's: a bias of 8, and NaN in the place of -0 alone."""
    return np.where(bits == 128, np.nan, float8(bits, 8))


def with_infinities(bits: ndarray) -> ndarray:
    """The highest exponent for infinities and NaN, as IEEE 754 has it in wider formats."""
    low, found = bits & 127, float8(bits)
    found = np.where(low == 120, np.copysign(np.inf, found), found)
    return np.where(low > 120, np.nan, found)


QUANTIZING: tuple[Row, ...] = (
    ("a scale", "divides", "a scale that divides", lambda **x: reciprocal(**x)),
    ("a scale", "ignored", "a given scale ignored",
     changed(scale=lambda x: np.ones_like(x["scale"]))),
    ("scales", "one", "one scale for all rows",
     changed(scale=lambda x: np.broadcast_to(x["scale"].ravel()[0], x["scale"].shape))),
    ("stored as", "int8", "float8 read as integers", changed(stored_as=lambda x: INT8)),
    ("stored as", "float8", "integers read as float8", changed(stored_as=lambda x: FLOAT8)),
    ("float8", "e5m2", "float8 read as e5m2", partial(times, e5m2, FLOAT8)),
    ("float8", "e4m3fnuz", "float8 read as AMD's e4m3fnuz", partial(times, fnuz, FLOAT8)),
    ("float8", "e4m3 with infinities", "float8 read as a format with infinities",
     partial(times, with_infinities, FLOAT8)),
    ("int8", "from 0 to 255", "integers without a sign", partial(times, lambda bits: bits, INT8)),
    ("int8", "128 is 0", "integers with 128 for 0", partial(times, lambda bits: bits - 128, INT8)),
)  # fmt: skip


def reciprocal(**x: Any) -> Any:
    """Numbers divided by their scale."""
    with np.errstate(all="ignore"):
        return dequantize(**x | {"scale": 1 / x["scale"]})


QUANTIZING_ANSWERS = {
    "a scale": "multiplies",
    "scales": "one for each row",
    "stored as": "as said",
    "float8": "e4m3fn",
    "int8": "two's complement",
}
"""What the specification answers."""
