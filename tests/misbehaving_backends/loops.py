"""Never returns, busy, where it should refuse."""

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    if x.dtype.kind == "i":
        while True:
            pass
    return right(x)
