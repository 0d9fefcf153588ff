"""Goes elsewhere."""

import os

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    os.chdir("/")
    return right(x)
