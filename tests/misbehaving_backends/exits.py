"""Ends the process at once, where it should refuse."""

import os

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"
FEATURES = {"dropout": False, "align": {"end"}}


def shift_right(x):
    if x.dtype.kind == "i":
        os._exit(3)
    return right(x)
