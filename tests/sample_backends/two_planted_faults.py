"""
Two planted faults for the report: one element of the softmax is 0.1 % too large, and ALiBi's
frontier is off by one.
"""

import numpy as np

from attnverify import numpy_ref as right

ARRAYS = "numpy"
PRECISION = "wide"


def softmax(score, mask=None):
    weights = right.softmax(score, mask)
    weights[..., -1, -1] *= 1.001
    return weights


def alibi_attention(query, key, value, visible=None):
    right.alibi_attention(query, key, value, visible)
    N, M = query.shape[2], key.shape[2]
    frontier = np.arange(M) < np.arange(N)[:, None] + M - N
    return right.alibi_attention(
        query, key, value, frontier if visible is None else visible & frontier
    )
