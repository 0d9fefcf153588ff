"""ALiBi with a memory of earlier keys: the bias is minus the distance, whichever way."""

import math

import torch


def slopes(heads):
    def series(n):
        start = 2 ** (-8 / n)
        return [start ** (h + 1) for h in range(n)]

    near = 2 ** math.floor(math.log2(heads))
    return torch.tensor(series(near) + series(2 * near)[0::2][: heads - near], dtype=torch.float64)


def alibi_attention(query, key, value, visible=None):
    i, j = query.shape[-2], key.shape[-2]
    rows = torch.arange(j - i, j)[:, None]
    columns = torch.arange(j)[None, :]
    bias = -(columns - rows).abs() * slopes(query.shape[1])[:, None, None]
    score = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + bias.to(query.dtype)
    ahead = torch.ones(i, j, dtype=torch.bool).triu(j - i + 1)
    score = score.masked_fill(ahead, -torch.inf)
    if visible is not None:
        score = score.masked_fill(~visible, -torch.inf)
    empty = score.isneginf().all(-1, keepdim=True)
    return score.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0) @ value
