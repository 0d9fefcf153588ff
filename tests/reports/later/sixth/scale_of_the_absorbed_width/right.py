"""Multi-head latent attention with the projections absorbed: one row of latents for all heads."""

import torch


def latent_attention(query, query_rope, latent, key_rope, scale, causal=False):
    work = torch.promote_types(query.dtype, torch.float32)
    q = torch.cat([query, query_rope], dim=-1).to(work)
    k = torch.cat([latent, key_rope], dim=-1).to(work).unsqueeze(1)
    v = latent.to(work).unsqueeze(1)
    score = q @ k.transpose(-1, -2) * scale
    if causal:
        N, M = score.shape[-2:]
        score = score.masked_fill(torch.ones(N, M, dtype=torch.bool).triu(M - N + 1), -torch.inf)
    lse = torch.logsumexp(score, dim=-1)
    weights = torch.exp(score - lse.masked_fill(lse.isneginf(), 0).unsqueeze(-1))
    return (weights @ v).to(query.dtype), lse
