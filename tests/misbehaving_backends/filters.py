"""Silences all warnings."""

import warnings

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    warnings.simplefilter("ignore")
    return right(x)
