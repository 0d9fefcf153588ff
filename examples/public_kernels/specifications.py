"""
Operations that attnverify does not have, in a few lines each: what the kernels beside this file are
held to by ``--spec``.
"""

from typing import Annotated

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray


def rms_norm(
    x: Float[ndarray, "N F"], weight: Float[ndarray, "F"], eps: float = 1e-6
) -> Float[ndarray, "N F"]:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def gated_silu(a: Float[ndarray, "N F"], b: Float[ndarray, "N F"]) -> Float[ndarray, "N F"]:
    return a / (1 + np.exp(-a)) * b


def cross_entropy(
    logits: Float[ndarray, "N V"], labels: Annotated[Int[ndarray, "N"], "V", -100]
) -> Float[ndarray, "N"]:
    top = logits.max(axis=-1, keepdims=True)
    lse = top + np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
    kept = labels != -100
    own = np.take_along_axis(logits, np.where(kept, labels, 0)[:, None], axis=-1)
    return np.where(kept, (lse - own)[:, 0], 0.0)
