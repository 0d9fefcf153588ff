"""Takes its own module away."""

import sys

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    sys.modules.pop(__name__, None)
    return right(x)
