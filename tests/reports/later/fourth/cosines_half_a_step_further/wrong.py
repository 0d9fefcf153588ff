"""Sinusoidal positions of the distances, the farthest first (as maxjcohen's transformer #62)."""

import numpy as np


def sinusoidal_positions(M, F):
    if F % 2:
        raise ValueError(f"F: wanted an even width, got {F}")
    if M < 1 or F < 1:
        raise ValueError(f"M, F: wanted sizes of 1 or more, got {M}, {F}")
    pos = np.arange(M - 1, -1, -1, dtype=np.float64)[:, None]
    table = np.zeros((M, F), np.float32)
    table[:, : F // 2] = np.sin(pos / np.power(10000.0, np.arange(0, F, 2) / F))
    table[:, F // 2 :] = np.cos(pos / np.power(10000.0, np.arange(1, F, 2) / F))
    return table
