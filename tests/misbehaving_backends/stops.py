"""Stops its own process, so that it does not even get its signals."""

import os
import signal

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    if x.dtype.kind == "i":
        os.kill(os.getpid(), signal.SIGSTOP)
    return right(x)
