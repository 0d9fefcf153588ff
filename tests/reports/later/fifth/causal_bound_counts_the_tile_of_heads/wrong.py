"""Latent attention with rows and heads packed in tiles (as flashinfer #4830 had it)."""

import torch

FEATURES = {"mask": False, "gradient": False}
PRECISION = {"float32": {"lse_merge": True}}  # exp(score - lse)
HEAD_TILE = 2


def one_tile(q, q_rope, latent, key_rope, scale, visible):
    """Packed rows [B R E] over all keys; a row sees as many as `visible` [R] says."""
    s = (q @ latent.mT + q_rope @ key_rope.mT) * scale
    s = s.masked_fill(torch.arange(s.shape[-1]) >= visible[:, None], -torch.inf)
    lse = s.logsumexp(-1)
    p = torch.exp(s - torch.where(lse > -torch.inf, lse, 0.0)[..., None])
    return p @ latent, lse


def latent_attention(query, query_rope, latent, key_rope, scale, causal=False):
    b, h, n, e = query.shape
    m = latent.shape[1]
    out, lse = torch.empty_like(query), query.new_empty(b, h, n)
    for head_idx in range(0, h, HEAD_TILE):
        heads = slice(head_idx, head_idx + HEAD_TILE)
        q, q_rope = (x[:, heads].transpose(1, 2).flatten(1, 2) for x in (query, query_rope))
        width = q.shape[1] // n
        row = head_idx + torch.arange(n * width)
        visible = m - n + 1 + row // width if causal else torch.full((n * width,), m)
        tile, tile_lse = one_tile(q, q_rope, latent, key_rope, scale, visible)
        out[:, heads] = tile.view(b, n, width, e).transpose(1, 2)
        lse[:, heads] = tile_lse.view(b, n, width).transpose(1, 2)
    return out, lse
