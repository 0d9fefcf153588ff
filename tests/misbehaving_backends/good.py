"""Nothing is wrong here: the neighbour of all the others."""

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    return right(x)
