"""
Claims that it is deterministic, and is not: the last bit depends on how often it was called, but in
half precision, whose last bit is all that a bound allows.
"""

from itertools import count

import numpy as np

from attnverify import numpy_ref as right

ARRAYS = "numpy"
PRECISION = "wide"
DETERMINISTIC = True
CALLS = count()


def softmax(score, mask=None):
    weights = right.softmax(score, mask)
    if next(CALLS) % 2 and weights.dtype in (np.float32, np.float64):
        return np.where(weights > 1e-30, np.nextafter(weights, 0 * weights), weights)
    return weights
