"""Attention in tiles with dropout (as nki-samples #80 had it)."""

import torch

FEATURES = {"mask": False}
TILE = 8


def scaled_dot_product_attention(query, key, value, keep=None, p=0.0):
    if keep is None and p > 0:
        raise ValueError("keep: wanted a draw where p > 0, got None")
    scores = query @ key.mT * query.shape[-1] ** -0.5
    top = scores.amax(-1, keepdim=True).detach()
    drawn = torch.ones_like(scores) if keep is None else keep.to(scores.dtype) / (1 - p)
    l_buffer, o_buffer = 0.0, 0.0
    for start in range(0, key.shape[2], TILE):
        tile = slice(start, start + TILE)
        p_local = torch.exp(scores[..., tile] - top)
        p_local = p_local * drawn.expand(scores.shape)[..., tile]
        l_buffer = l_buffer + p_local.sum(-1, keepdim=True)
        o_buffer = o_buffer + p_local @ value[:, :, tile]
    return o_buffer / l_buffer
