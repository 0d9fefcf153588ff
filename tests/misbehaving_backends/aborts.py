"""The C library's way out, as after a failed assertion."""

import os

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    if x.shape[-1] == 65:
        os.abort()
    return right(x)
