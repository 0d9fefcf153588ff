"""A causal mask in NumPy (kind of RVC-Boss/GPT-SoVITS #965)."""

import numpy as np


def causal_mask(N, M):
    return ~np.triu(np.ones((N, M), bool), M - N + 1)
