"""Raises what a terminal raises."""

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    raise KeyboardInterrupt
