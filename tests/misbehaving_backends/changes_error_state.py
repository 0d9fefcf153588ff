"""Silences NumPy."""

import numpy as np

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    np.seterr(divide="ignore")
    return right(x)
