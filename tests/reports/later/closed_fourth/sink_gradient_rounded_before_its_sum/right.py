"""Attention with sinks, the gradient of the sinks reduced by hand (as jax #40128 had it)."""

import torch

FEATURES = {"mask": False, "dropout": False}


class Splash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sinks, hidden, scale):
        s = (q @ k.mT * scale).masked_fill(hidden, -torch.inf)
        logits = torch.cat((s, sinks[:, None, None].to(s.dtype).expand(*s.shape[:3], 1)), -1)
        lse = logits.logsumexp(-1)
        weights = logits.softmax(-1).masked_fill((lse == -torch.inf)[..., None], 0)
        p, p_sink = weights[..., :-1], weights[..., -1]
        ctx.save_for_backward(q, k, v, p, p_sink)
        ctx.scale = scale
        return p @ v, lse

    @staticmethod
    def backward(ctx, d_out, d_lse):
        q, k, v, p, p_sink = ctx.saved_tensors
        d_p = d_out @ v.mT
        delta = (p * d_p).sum(-1) - d_lse
        d_s = p * (d_p - delta[..., None]) * ctx.scale
        lost = p_sink * delta
        d_sinks = -lost.sum((0, 2))
        return d_s @ k, d_s.mT @ q, p.mT @ d_out, d_sinks, None, None


def grouped_attention(query, key, value, sink=None, scale=None, causal=False):
    (heads, n), m = query.shape[1:3], key.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
    sink = query.new_full((heads,), -torch.inf) if sink is None else sink
    hidden = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)
    hidden = hidden if causal else torch.zeros_like(hidden)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return Splash.apply(query, k, v, sink, hidden, scale)
