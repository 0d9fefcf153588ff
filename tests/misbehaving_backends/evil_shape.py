"""Returns an array whose shape cannot be asked for."""

import numpy as np

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


class Evil(np.ndarray):
    @property
    def shape(self):
        raise OSError("no shape today")


def shift_right(x):
    return right(x).view(Evil)
