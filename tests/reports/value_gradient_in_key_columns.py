"""Attention with a backward in tiles (kind of fla-org/flash-linear-attention #633)."""

import torch

TILE = 16


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.scale = q.shape[-1] ** -0.5
        s = q @ k.mT * ctx.scale
        top = s.amax(-1, keepdim=True)
        p = torch.exp(s - top)
        total = p.sum(-1, keepdim=True)
        out = p / total @ v
        ctx.save_for_backward(q, k, v, out, top, total)
        return out

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, out, top, total = ctx.saved_tensors
        delta = (d_out * out).sum(-1, keepdim=True)
        d_q, d_k, d_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        columns = slice(0, v.shape[-1])
        for start in range(0, k.shape[-2], TILE):
            rows = slice(start, start + TILE)
            k_tile, v_tile, d_o = k[..., rows, :], v[..., rows, columns], d_out[..., columns]
            p = torch.exp(q @ k_tile.mT * ctx.scale - top) / total
            d_v[..., rows, columns] = p.mT @ d_o
            d_s = p * (d_o @ v_tile.mT - delta) * ctx.scale
            d_q += d_s @ k_tile
            d_k[..., rows, :] = d_s.mT @ q
        return d_q, d_k, d_v


def scaled_dot_product_attention(query, key, value):
    return Attention.apply(query, key, value)
