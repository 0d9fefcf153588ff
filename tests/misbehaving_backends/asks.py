"""Asks somebody at the terminal."""

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    input("go on? ")
    return right(x)
