"""Allows itself more depth."""

import sys

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    sys.setrecursionlimit(123_456)
    return right(x)
