"""Puts a directory in front of everybody's imports."""

import sys

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    sys.path.insert(0, "/nowhere")
    return right(x)
