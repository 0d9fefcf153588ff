"""Reads address 0 while it is imported."""

import ctypes

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"

ctypes.string_at(0)


def shift_right(x):
    return right(x)
