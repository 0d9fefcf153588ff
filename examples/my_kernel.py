"""
The ten-line start: one kernel in one file.

    attnverify run --backend examples/my_kernel.py

The function's name says which operation it is, its import whose arrays it takes; autograd gives the
gradient.
"""

import torch

PRECISION = "wide"  # computed in a wider format, rounded once


def alibi_attention(query, key, value, visible=None):
    (H, N, D), M, n = query.shape[1:], key.shape[2], 2 ** (query.shape[1].bit_length() - 1)
    slopes = query.new_tensor(
        [2 ** (-8 / n * (h + 1 if h < n else h - n + 0.5)) for h in range(H)], dtype=torch.double
    )
    distance = (
        torch.arange(M, device=query.device) - torch.arange(M - N, M, device=query.device)[:, None]
    )
    seen = (distance <= 0) if visible is None else (distance <= 0) & visible
    key, value = (
        x.double().where(seen.any(-2).unsqueeze(-1), 0) for x in (key, value)
    )  # the unseen may be NaN
    score = query.double() @ key.mT / D**0.5 + slopes[:, None, None] * distance
    return (score.masked_fill(~seen, -torch.inf).softmax(-1).masked_fill(~seen, 0) @ value).to(
        query.dtype
    )
