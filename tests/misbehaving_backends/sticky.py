"""An illegal memory access: the device answers no more, whatever it is asked. Acted with a flag."""

import numpy as np

from attnverify.numpy_ref import shift_right as right

PRECISION = "wide"
LOST = []


def answer(value):
    if LOST:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return value


def from_numpy(x, dtype):
    return answer(np.array(x, dtype if x.dtype.kind == "f" else x.dtype))


def to_numpy(x):
    return answer(np.asarray(x, np.float64 if x.dtype.kind == "f" else x.dtype))


def synchronize():
    answer(None)


def missing():
    return None


def shift_right(x):
    if x.shape[-1] == 33:
        LOST.append(x)
    return right(x)
