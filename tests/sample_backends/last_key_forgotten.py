"""One kernel in one file, NumPy alone: the last key is forgotten."""

import numpy as np

PRECISION = "wide"


def softmax(score, mask=None):
    if not isinstance(score, np.ndarray) or score.dtype.kind != "f":
        raise ValueError("score: wanted a floating array [... N M], got something else")
    score = score.astype(float)
    if mask is not None:
        if (
            mask.dtype.kind not in "bf"
            or np.broadcast_shapes(mask.shape, score.shape) != score.shape
        ):
            raise ValueError(
                "mask: wanted a boolean or float array that broadcasts to the score, got something "
                "else"
            )
        score = (
            np.where(mask, score, -np.inf)
            if mask.dtype == bool
            else np.where(mask > -np.inf, score + mask, -np.inf)
        )
    return weights(score).astype(np.float32)


def weights(score):
    e = np.exp(score - np.maximum(score.max(axis=-1, keepdims=True), -1e300))
    e[..., -1] = 0
    total = e.sum(axis=-1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)
