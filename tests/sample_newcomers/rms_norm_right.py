"""A kernel that its own specification judges."""

import numpy as np

PRECISION = "wide"


def rms_norm(x, gain, eps=1e-6):
    y = x.astype(np.float64)
    y = y / np.sqrt(np.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y * gain.astype(np.float64)).astype(x.dtype)
