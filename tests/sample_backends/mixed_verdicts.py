"""
A little of everything: right, wrong in refusals, wrong in values, and unsupported, on one small
operation.
"""

import numpy as np

from attnverify import numpy_ref as right

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    return right.shift_right(x)


def rel_shift(x):
    return right.rel_shift(np.asarray(x, np.result_type(x, np.float16)))


def causal_mask(N, M):
    return right.causal_mask(N, M).T if N == M else right.causal_mask(N, M)


def get_slopes(n_heads, dtype="float64"):
    raise NotImplementedError("slopes live on the device")
