"""Grouped-query attention with a backward by hand (as RL-Kernel #246 had it)."""

import torch


class Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        share = q.shape[1] // k.shape[1]
        k_h, v_h = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        s = q @ k_h.mT * q.shape[-1] ** -0.5
        lse = torch.logsumexp(s, -1)
        out = torch.exp(s - lse[..., None]) @ v_h
        ctx.save_for_backward(q, k, v, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx, d_out, d_lse):
        q, k, v, out, lse = ctx.saved_tensors
        share, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
        d_q, d_k, d_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for h in range(q.shape[1]):
            g = h // share
            p = torch.exp(q[:, h] @ k[:, g].mT * scale - lse[:, h, :, None])
            delta = (d_out[:, h] * out[:, h]).sum(-1)
            d_s = p * (d_out[:, h] @ v[:, g].mT - delta[..., None]) * scale
            d_q[:, h] = d_s @ k[:, g]
            d_k[:, g] += d_s.mT @ q[:, h]
            d_v[:, g] += p.mT @ d_out[:, h]
        return d_q, d_k, d_v


def grouped_attention(query, key, value):
    return Grouped.apply(query, key, value)
