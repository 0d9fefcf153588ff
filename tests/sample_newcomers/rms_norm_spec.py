"""A specification of a newcomer's own."""

import numpy as np
from jaxtyping import Float
from numpy import ndarray


def rms_norm(x: Float[ndarray, "B N F"], gain: Float[ndarray, "F"], eps: float = 1e-6):  # noqa: F821
    """Divide by the root mean square, multiply with a gain."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain
