"""Latent attention with its heads on two ranks (as TransformerEngine #1975 had it)."""

import torch

FEATURES = {"mask": False}
RANKS = 2


def shard(x, rank):
    """The heads of a rank: the first half, or the rest."""
    half = (x.shape[1] + 1) // RANKS
    return x[:, rank * half : (rank + 1) * half]


def gathered(x, rank):
    """What all ranks hold; its gradient is summed over them."""
    return x


def on_rank(q, q_rope, latent, key_rope, scale, hidden):
    s = (q @ latent[:, None].mT + q_rope @ key_rope[:, None].mT) * scale
    s = s.masked_fill(hidden, -torch.inf)
    top = s.amax(-1, keepdim=True).clamp(min=torch.finfo(s.dtype).min).detach()
    e = torch.exp(s - top)
    total = e.sum(-1, keepdim=True)
    lse = torch.where(total > 0, top + total.clamp(min=1e-30).log(), -torch.inf)
    return e @ latent[:, None] / torch.where(total > 0, total, 1), lse[..., 0]


def latent_attention(query, query_rope, latent, key_rope, scale, causal=False):
    n, m = query.shape[2], latent.shape[1]
    hidden = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)
    hidden = hidden if causal else torch.zeros_like(hidden)
    found = [
        on_rank(shard(query, r), shard(query_rope, r), latent, gathered(key_rope, r), scale, hidden)
        for r in range(RANKS)
    ]
    return tuple(torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
