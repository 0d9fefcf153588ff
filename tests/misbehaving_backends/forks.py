"""Forks, and both go on."""

import os

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    os.fork()
    return right(x)
