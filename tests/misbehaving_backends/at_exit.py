"""Wants to sleep at the end, once for each call."""

import atexit
import time

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    atexit.register(time.sleep, 1000)
    return right(x)
