"""Says that memory is out though it is not."""

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    raise MemoryError("not a byte left")
