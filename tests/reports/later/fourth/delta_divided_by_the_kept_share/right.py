"""Attention with dropout, the kept share divided out at the end (as torch-xpu-ops #3766)."""

import torch

FEATURES = {"mask": False}


class Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, keep, p_dropout):
        scale = q.shape[-1] ** -0.5
        p = (q @ k.mT * scale).softmax(-1)
        out = (p * keep) @ v / (1 - p_dropout)
        ctx.save_for_backward(q, k, v, p, keep, out)
        ctx.scale, ctx.p_dropout = scale, p_dropout
        return out

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, p, keep, out = ctx.saved_tensors
        rp_dropout = 1 / (1 - ctx.p_dropout)
        dot_do_o = (out * d_out).sum(-1, keepdim=True) * (1 - ctx.p_dropout)
        d_s = p * (keep * (d_out @ v.mT) - dot_do_o)
        d_v = (p * keep).mT @ d_out * rp_dropout
        d_q, d_k = d_s @ k, d_s.mT @ q
        factor = ctx.scale * rp_dropout
        return d_q * factor, d_k * factor, d_v, None, None


def scaled_dot_product_attention(query, key, value, keep=None, p=0.0):
    if keep is None:
        if p > 0:
            raise ValueError("keep: wanted a draw where p > 0, got None")
        keep = torch.ones((), dtype=torch.bool)
    return Dropped.apply(query, key, value, keep, p)
