"""What the files of these reports compute, in NumPy."""

from typing import Annotated

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray


def swiglu(x: Float[ndarray, "N 2F"]):
    gate, up = np.split(x, 2, axis=-1)
    return gate / (1 + np.exp(-gate)) * up


def rms_norm(x: Float[ndarray, "N F"], weight: Float[ndarray, "F"], eps: float = 1e-6):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def layer_norm(x: Float[ndarray, "B N F"], weight: Float[ndarray, "F"], bias: Float[ndarray, "F"]):
    c = x - x.mean(-1, keepdims=True)
    return c / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5) * weight + bias


def cross_entropy(x: Float[ndarray, "N V"], target: Annotated[Int[ndarray, "N"], "V", -100]):
    top = x.max(-1, keepdims=True)
    lse = top[:, 0] + np.log(np.exp(x - top).sum(-1))
    there = target >= 0
    picked = np.take_along_axis(x, np.where(there, target, 0)[:, None], -1)[:, 0]
    return np.where(there, lse - picked, 0.0).sum() / np.maximum(there.sum(), 1)


def soft_cross_entropy(x: Float[ndarray, "N V"], target: Annotated[Float[ndarray, "N V"], (0, 1)]):
    top = x.max(-1, keepdims=True)
    lse = top[:, 0] + np.log(np.exp(x - top).sum(-1))
    return (lse * target.sum(-1) - (x * target).sum(-1)).mean()


def dilated_conv(x: Float[ndarray, "B L"], w: Float[ndarray, "3"]):
    wide = np.pad(x, ((0, 0), (2, 2)))
    L = x.shape[1]
    return wide[:, :L] * w[0] + wide[:, 2 : L + 2] * w[1] + wide[:, 4 : L + 4] * w[2]
