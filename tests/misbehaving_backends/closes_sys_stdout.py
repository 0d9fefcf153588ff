"""Closes Python's stdout."""

import sys

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    sys.stdout.close()
    return right(x)
