"""Nothing is wrong here: another thread fills the output until `synchronize`, and ends after it."""

import threading
import time

import numpy as np

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"
FILLED: list[threading.Event] = []


def from_numpy(x, dtype):
    return np.array(x, dtype if x.dtype.kind == "f" else x.dtype)


def to_numpy(x):
    return np.array(x, "float64" if x.dtype.kind == "f" else x.dtype)


def synchronize():
    while FILLED:
        FILLED.pop().wait()


def shift_right(x):
    answer, filled = right(x), threading.Event()
    output = np.zeros_like(answer)

    def fill():
        time.sleep(0.01)
        output[...] = answer
        filled.set()
        time.sleep(0.1)

    FILLED.append(filled)
    threading.Thread(target=fill).start()
    return output
