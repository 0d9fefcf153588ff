"""Replaces a function of NumPy."""

import numpy as np

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    np.exp = np.exp2
    return right(x)
