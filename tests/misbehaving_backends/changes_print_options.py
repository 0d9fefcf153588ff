"""Prints two digits from now on."""

import numpy as np

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    np.set_printoptions(precision=2)
    return right(x)
