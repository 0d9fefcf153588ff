"""Reads address 0 where there are 33 columns."""

import ctypes

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    if x.shape[-1] == 33:
        ctypes.string_at(0)
    return right(x)
