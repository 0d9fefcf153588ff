import math

import torch


def alibi_attention(query, key, value, visible=None):
    B, H, N, D = query.shape
    M = key.shape[2]
    q, k, v = query.float(), key.float(), value.float()
    closest = 2 ** math.floor(math.log2(H))
    slopes = [2 ** (-8 * (h + 1) / closest) for h in range(closest)]
    slopes += [2 ** (-4 * (2 * h + 1) / closest) for h in range(H - closest)]
    slopes = torch.tensor(slopes)[:, None, None]
    i = torch.arange(N)[:, None] + M - N
    high = torch.full((B, H, N, 1), -1e30)
    total = torch.zeros(B, H, N, 1)
    out = torch.zeros(B, H, N, v.shape[-1])
    for start in range(0, M, 32):
        j = torch.arange(start, min(start + 32, M))[None, :]
        s = q @ k[:, :, start : start + 32].transpose(-1, -2) / math.sqrt(D) + slopes * (j - i)
        seen = j <= i
        if visible is not None:
            seen = seen & visible[..., start : start + 32]
        s = s.masked_fill(~seen, float("-inf"))
        new = torch.maximum(high, s.amax(-1, keepdim=True))
        p = torch.exp(s - new)
        total = total * torch.exp(high - new) + p.sum(-1, keepdim=True)
        out = out + p @ v[:, :, start : start + 32]
        high = new
    return (out / torch.where(total == 0, 1.0, total)).to(query.dtype)
