"""Grouped attention with sinks, heads of a group packed as rows (sgl-kernel-xpu #254)."""

import torch


def one_group(q, k, v, sinks):
    """All query heads [B S N D] that share one head of keys and values."""
    b, share, n, d = q.shape
    rows = q.reshape(b, share * n, d)
    s = (rows @ k.mT * d**-0.5).view(b, share, n, -1)
    sinks = sinks[None, :, None].expand(b, share, n)
    lse = torch.logaddexp(torch.logsumexp(s, -1), sinks.to(s.dtype))
    p = torch.exp(s - lse[..., None]).view(b, share * n, -1)
    return (p @ v).view(b, share, n, -1), lse


def grouped_attention(query, key, value, sink=None):
    H, G = query.shape[1], key.shape[1]
    share = H // G
    sink = query.new_full((H,), -torch.inf) if sink is None else sink
    outputs, lses = [], []
    for g in range(G):
        heads = slice(g * share, (g + 1) * share)
        own = sink[:share]  # one for each packed head
        out, lse = one_group(query[:, heads], key[:, g], value[:, g], own)
        outputs.append(out)
        lses.append(lse)
    return torch.cat(outputs, 1), torch.cat(lses, 1)
