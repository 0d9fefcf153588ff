"""Closes descriptors 1 and 2."""

import os

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    os.closerange(1, 3)
    return right(x)
