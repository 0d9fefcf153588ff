"""Attention whose gradients are stored in whole tiles into one flat buffer (as FlagGems #898)."""

import torch

FEATURES = {"mask": False, "dropout": False}
BLOCK = 8


class Flat:
    """Rows of all heads end to end, with room for a last tile."""

    def __init__(self, like):
        self.like, self.m = like, like.shape[2]
        self.rows = like.new_zeros(like.shape[0] * like.shape[1] * self.m + BLOCK, like.shape[3])

    def store(self, head, start, tile):
        count = min(len(tile), self.m - start)
        at = head * self.m + start
        self.rows[at : at + count] = tile[:count]

    def whole(self):
        return self.rows[: len(self.rows) - BLOCK].view_as(self.like)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        p = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, p = ctx.saved_tensors
        d_p = d_out @ v.mT
        d_s = p * (d_p - (p * d_p).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        d_v, m = Flat(v), k.shape[2]
        weights, arriving = p.flatten(0, 1), d_out.flatten(0, 1)
        for start in range(0, m, BLOCK):
            for head in range(len(weights)):
                tile = v.new_zeros(BLOCK, v.shape[3])
                found = weights[head, :, start : start + BLOCK].mT @ arriving[head]
                tile[: len(found)] = found
                d_v.store(head, start, tile)
        return d_s @ k, d_s.mT @ q, d_v.whole()


def scaled_dot_product_attention(query, key, value):
    return Attention.apply(query, key, value)
