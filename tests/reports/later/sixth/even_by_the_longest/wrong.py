"""Attention over padded batches: a fast path without a mask for keys that fill whole tiles."""

import torch

FEATURES = {"gradient": False}
TILE = 8


def grouped_attention(query, key, value, scale=None, lengths=None):
    B, H, N, D = query.shape
    G, M, E = value.shape[1:]
    work = torch.promote_types(query.dtype, torch.float32)
    scale = D**-0.5 if scale is None else scale
    q = query.to(work).unflatten(1, (G, H // G)) * scale
    used = torch.full((B,), M) if lengths is None else lengths
    even = M % TILE == 0
    top = torch.full((*q.shape[:-1], 1), -torch.inf, dtype=work)
    total = torch.zeros_like(top)
    acc = torch.zeros(*q.shape[:-1], E, dtype=work)
    for start in range(0, M, TILE):
        tile = slice(start, min(start + TILE, M))
        s = q @ key[:, :, None, tile].to(work).mT
        if not even:
            inside = torch.arange(M)[tile] < used[:, None]
            s = s.masked_fill(~inside[:, None, None, None], -torch.inf)
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        base = new.masked_fill(new.isneginf(), 0)
        p, fade = torch.exp(s - base), torch.exp(top - base)
        total = total * fade + p.sum(-1, keepdim=True)
        acc = acc * fade + p @ value[:, :, None, tile].to(work)
        top = new
    output = acc / total.masked_fill(total == 0, 1)
    lse = top + total.masked_fill(total == 0, 1).log()
    return output.flatten(1, 2).to(query.dtype), lse.flatten(1, 2).squeeze(-1)
