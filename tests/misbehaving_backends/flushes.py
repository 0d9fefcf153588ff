"""Subnormal numbers are 0 from now on, as with -ffast-math."""

import torch

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    torch.set_flush_denormal(True)
    return right(x)
