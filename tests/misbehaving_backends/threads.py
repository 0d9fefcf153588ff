"""Leaves a thread behind at each call."""

import threading

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    threading.Thread(target=threading.Event().wait).start()
    return right(x)
