"""Draws random numbers, which is nobody's harm."""

import random

import numpy as np

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    np.random.random(3)
    random.random()
    return right(x)
