"""Attention weights."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.spec import softmax
from pictures import style


def under_each_mask(score: ndarray, masks: dict[str, Any]) -> None:
    """The weights of one score under several masks; hidden pairs are grey."""
    N, M = score.shape
    for axes, (name, mask) in zip(
        style.panels(len(masks), width=0.9 + 0.42 * M, height=1.1 + 0.42 * N),
        masks.items(),
        strict=True,
    ):
        weights = softmax(score, mask)
        hidden = (
            np.zeros((N, M), bool)
            if mask is None or mask.dtype != bool
            else ~np.broadcast_to(mask, (N, M))
        )
        style.matrix(axes, np.ma.array(weights, mask=hidden), name)
