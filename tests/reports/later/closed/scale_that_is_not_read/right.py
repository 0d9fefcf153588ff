"""Latent attention over one array of keys (as the backend of FastVideo #1457 had its scale)."""

import torch


def blockscaled_attention(q, k, v, **kwargs):
    scale = kwargs["sm_scale"]
    s = q @ k.mT * scale
    lse = torch.logsumexp(s, -1)
    return torch.exp(s - lse[..., None]) @ v, lse


def latent_attention(query, query_rope, latent, key_rope, scale):
    q = torch.cat([query, query_rope], -1)
    k = torch.cat([latent, key_rope], -1)
    out, lse = blockscaled_attention(q, k[:, None], latent[:, None], sm_scale=scale)
    return out, lse


if __name__ == "__main__":
    B, H, N, M, E, D = 2, 3, 2, 5, 8, 4
    q, r = torch.randn(B, H, N, E), torch.randn(B, H, N, D)
    c, k = torch.randn(B, M, E), torch.randn(B, M, D)
    print(latent_attention(q, r, c, k, scale=0.3)[0].shape)
