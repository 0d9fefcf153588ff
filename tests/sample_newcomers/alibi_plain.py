import math

import torch


def alibi_attention(query, key, value, visible=None):
    B, H, N, D = query.shape
    M = key.shape[2]
    q, k, v = query.float(), key.float(), value.float()
    score = q @ k.transpose(-1, -2) / math.sqrt(D)
    slopes = [2 ** (-8 * (h + 1) / H) for h in range(H)]
    i = torch.arange(N)[:, None] + M - N
    j = torch.arange(M)[None, :]
    score = score + torch.tensor(slopes)[:, None, None] * (j - i)
    seen = j <= i
    if visible is not None:
        seen = seen & visible
    score = score.masked_fill(~seen, float("-inf"))
    weights = torch.softmax(score, -1).nan_to_num(0.0)
    return (weights @ v).to(query.dtype)
