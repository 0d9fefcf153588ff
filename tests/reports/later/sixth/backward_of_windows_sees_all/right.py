"""The sliding-window branch of a sparse attention: forward and backward are two separate calls."""

import torch


def visible(N, M, causal, window):
    distance = torch.arange(M - N, M)[:, None] - torch.arange(M)[None, :]
    left, right = window or (None, None)
    seen = torch.ones(N, M, dtype=torch.bool)
    if causal:
        seen &= distance >= 0
    if left is not None:
        seen &= distance <= left
    if right is not None:
        seen &= distance >= -right
    return seen


def weigh(q, k, scale, seen):
    score = (q @ k.mT * scale).masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(score, -1, keepdim=True)
    return torch.exp(score - lse.masked_fill(lse.isneginf(), 0)), lse


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, window, scale):
        ctx.save_for_backward(q, k, v)
        ctx.rest = causal, window, scale
        p, lse = weigh(q, k, scale, visible(q.shape[-2], k.shape[-2], causal, window))
        return p @ v, lse.squeeze(-1)

    @staticmethod
    def backward(ctx, d_out, d_lse):
        q, k, v = ctx.saved_tensors
        causal, window, scale = ctx.rest
        seen = visible(q.shape[-2], k.shape[-2], causal, window)
        p, _ = weigh(q, k, scale, seen)
        d_p = d_out @ v.mT
        d_s = p * (d_p - (p * d_p).sum(-1, keepdim=True) + d_lse.unsqueeze(-1)) * scale
        return d_s @ k, d_s.mT @ q, p.mT @ d_out, None, None, None


def grouped_attention(query, key, value, scale=None, causal=False, window=None):
    work = torch.promote_types(query.dtype, torch.float32)
    group = query.shape[1] // key.shape[1]
    k, v = (x.to(work).repeat_interleave(group, 1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output, lse = Attention.apply(query.to(work), k, v, causal, window, scale)
    return output.to(query.dtype), lse
