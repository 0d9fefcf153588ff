"""Sends a signal to its whole process group."""

import os
import signal

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    if x.dtype.kind == "i":
        os.killpg(0, signal.SIGTERM)
    return right(x)
