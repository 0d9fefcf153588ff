"""Claims that it is deterministic, and is not: the last bit depends on how often it was called."""

from itertools import count

import numpy as np

from attnverify import numpy_ref as right

ARRAYS = "numpy"
PRECISION = "wide"
DETERMINISTIC = True
CALLS = count()


def softmax(score, mask=None):
    weights = right.softmax(score, mask)
    return (
        np.where(weights > 1e-30, np.nextafter(weights, 0 * weights), weights)
        if next(CALLS) % 2
        else weights
    )
