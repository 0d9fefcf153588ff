"""Puts something else in NumPy's place."""

import sys

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    sys.modules["numpy"] = object()
    return right(x)
