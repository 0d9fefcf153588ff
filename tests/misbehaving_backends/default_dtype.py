"""Every new tensor is float64 from now on."""

import torch

from attnverify.numpy_ref import shift_right as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    torch.set_default_dtype(torch.float64)
    return right(x)
