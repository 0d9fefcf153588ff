"""Flash attention with a learned sink for each head, which joins the row sum at the end."""

import torch

FEATURES = {"gradient": False}
TILE = 16


def grouped_attention(query, key, value, sink=None, scale=None, causal=False, lengths=None):
    B, H, N, D = query.shape
    M, E, work = key.shape[2], value.shape[-1], torch.promote_types(query.dtype, torch.float32)
    k, v = (x.to(work).repeat_interleave(H // key.shape[1], 1) for x in (key, value))
    q = query.to(work) * (D**-0.5 if scale is None else scale)
    used = torch.full((B,), M) if lengths is None else lengths
    place = used[:, None] - N + torch.arange(N)
    top = torch.full((B, H, N, 1), -torch.inf, dtype=work)
    total, acc = torch.zeros_like(top), torch.zeros(B, H, N, E, dtype=work)

    def rescale(new):
        base = new.masked_fill(new.isneginf(), 0)
        return base, torch.exp(top - base)

    for start in range(0, M, TILE):
        tile = slice(start, min(start + TILE, M))
        j = torch.arange(M)[tile]
        seen = (j < used[:, None, None]).expand(B, N, len(j))
        if causal:
            seen = seen & (j <= place[..., None])
        s = (q @ k[:, :, tile].mT).masked_fill(~seen[:, None], -torch.inf)
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        base, fade = rescale(new)
        p = torch.exp(s - base)
        total, acc, top = (
            total * fade + p.sum(-1, keepdim=True),
            acc * fade + p @ v[:, :, tile],
            new,
        )
    if sink is not None:
        sink = sink.to(work)[:, None, None]
        new = torch.maximum(top, sink)
        base, fade = rescale(new)
        total, acc, top = total * fade + torch.exp(sink - base), acc * fade, new
    empty = total == 0
    lse = torch.where(empty, -torch.inf, top + total.masked_fill(empty, 1).log())
    return (acc / total.masked_fill(empty, 1)).to(query.dtype), lse.squeeze(-1)
