"""Seeds the numbers of everybody."""

import random

import numpy as np

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    np.random.seed(0)
    random.seed(0)
    return right(x)
