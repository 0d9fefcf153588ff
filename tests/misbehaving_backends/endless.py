"""Returns a generator that never ends."""

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    return (x for _ in iter(int, 1))
