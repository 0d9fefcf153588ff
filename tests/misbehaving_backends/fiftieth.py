"""Waits for somebody at its fiftieth call."""

import itertools
import threading

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"

COUNT = itertools.count(1)


def shift_right(x):
    if next(COUNT) == 50:
        threading.Event().wait()
    return right(x)
