"""Sinusoidal positions in NumPy (kind of tensorflow/models #10945)."""

import numpy as np


def sinusoidal_positions(M, F):
    if F % 2:
        raise ValueError(f"F: wanted an even width, got {F}")
    timescales = F // 2
    step = np.log(10000.0) / timescales
    inverse = np.exp(-step * np.arange(timescales))
    angle = np.arange(M - 1, -1, -1.0)[:, None] * inverse
    return np.concatenate([np.sin(angle), np.cos(angle)], -1)
