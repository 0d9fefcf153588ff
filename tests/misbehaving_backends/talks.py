"""Says a word now and then, and is wrong."""

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    print("about to shift", x.shape)
    return right(x) + 1
