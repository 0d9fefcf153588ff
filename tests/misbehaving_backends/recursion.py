"""Calls itself."""

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    return shift_right(x)
