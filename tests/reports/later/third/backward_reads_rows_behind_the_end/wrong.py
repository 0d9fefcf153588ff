"""Flash attention in tiles, forward and backward, as a Triton kernel walks (tokamax #316)."""

import torch

FEATURES = {"mask": False, "dropout": False}
TILE = 8


def rows_of(x, start):
    """A tile of rows; what stands behind the end is the last row, to be hidden by the caller."""
    at = torch.arange(start, start + TILE)
    return x[:, :, at.clamp(max=x.shape[2] - 1)], at < x.shape[2]


class Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        n, m = q.shape[2], k.shape[2]
        out, lse = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype), q.new_zeros(q.shape[:3])
        for i in range(0, n, TILE):
            tile, inside = rows_of(q, i)
            top = tile.new_full(tile.shape[:3], -torch.inf)
            total, acc = torch.zeros_like(top), tile.new_zeros(*tile.shape[:3], v.shape[3])
            for j in range(0, m, TILE):
                keys, there = rows_of(k, j)
                s = (tile @ keys.mT * scale).masked_fill(~there, -torch.inf)
                new = torch.maximum(top, s.amax(-1))
                p, fade = torch.exp(s - new[..., None]), torch.exp(top - new)
                total = total * fade + p.sum(-1)
                acc = acc * fade[..., None] + p @ rows_of(v, j)[0]
                top = new
            out[:, :, i : i + TILE] = (acc / total[..., None])[:, :, inside]
            lse[:, :, i : i + TILE] = (top + total.log())[:, :, inside]
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, out, lse = ctx.saved_tensors
        d_q, d_k, d_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        delta = (out * d_out).sum(-1)
        for i in range(0, q.shape[2], TILE):
            (tile, inside), (d_tile, _) = rows_of(q, i), rows_of(d_out, i)
            p = torch.exp(tile @ k.mT * ctx.scale - rows_of(lse, i)[0][..., None])
            d_s = p * (d_tile @ v.mT - rows_of(delta, i)[0][..., None]) * ctx.scale
            d_q[:, :, i : i + TILE] = (d_s @ k)[:, :, inside]
            d_k += d_s.mT @ tile
            d_v += p.mT @ d_tile
        return d_q, d_k, d_v, None


def scaled_dot_product_attention(query, key, value):
    return Flash.apply(query, key, value, query.shape[-1] ** -0.5)
