"""Replaces a function of NumPy while it is imported."""

import numpy as np

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"

np.where = np.add


def shift_right(x):
    return right(x)
