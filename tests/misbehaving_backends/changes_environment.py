"""Sets a variable for everybody."""

import os

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    os.environ["OMP_NUM_THREADS"] = "64"
    return right(x)
