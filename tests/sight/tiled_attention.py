"""A right attention in tiles of 64 keys and 32 queries, with a mask: what changes are made of."""

import torch

ROWS, TILE = 32, 64


def scaled_dot_product_attention(query, key, value, attn_mask=None):
    B, H, N, D = query.shape
    M = key.shape[2]
    out = query.new_zeros(B, H, N, value.shape[3])
    for first in range(0, N, ROWS):
        q = query[:, :, first : first + ROWS].float() * D**-0.5
        high = torch.full((B, H, q.shape[2], 1), -torch.inf)
        total = torch.zeros_like(high)
        acc = torch.zeros(B, H, q.shape[2], value.shape[3])
        for start in range(0, M, TILE):
            stop = min(start + TILE, M)
            s = q @ key[:, :, start:stop].float().transpose(2, 3)
            if attn_mask is not None:
                part = attn_mask.expand(B, H, N, M)[:, :, first : first + ROWS, start:stop]
                if attn_mask.dtype == torch.bool:
                    s = s.masked_fill(~part, -torch.inf)
                else:
                    s = s + part.float()
            new = torch.maximum(high, s.amax(-1, keepdim=True))
            safe = new.masked_fill(new == -torch.inf, 0.0)
            p = torch.exp(s - safe)
            scale = torch.exp(high - safe)
            total = total * scale + p.sum(-1, keepdim=True)
            acc = acc * scale + p @ value[:, :, start:stop].float()
            high = new
        out[:, :, first : first + ROWS] = torch.where(total > 0, acc / total, 0.0)
    return out
