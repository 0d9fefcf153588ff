"""Prints a gigabyte."""

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    if x.dtype.kind == "i":
        for _ in range(1000):
            print("x" * 1_000_000)
    return right(x)
