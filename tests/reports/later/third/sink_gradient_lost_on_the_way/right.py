"""Grouped attention with a learned sink and a backward by hand (as Megatron-LM #205 had it)."""

import torch


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sink, hidden, scale):
        s = (q @ k.mT * scale).masked_fill(hidden, -torch.inf)
        last = sink[:, None, None].to(s.dtype).expand(*s.shape[:-1], 1)
        lse = torch.logsumexp(torch.cat([s, last], -1), -1, keepdim=True)
        p = torch.exp(s - lse).masked_fill(hidden, 0)
        ctx.save_for_backward(q, k, v, p, torch.exp(last - lse).nan_to_num(0))
        ctx.scale = scale
        return p @ v, lse.squeeze(-1)

    @staticmethod
    def backward(ctx, d_out, d_lse):
        q, k, v, p, p_sink = ctx.saved_tensors
        d_p = d_out @ v.mT
        delta = (p * d_p).sum(-1, keepdim=True) - d_lse[..., None]
        d_s = p * (d_p - delta) * ctx.scale
        d_sink = -(p_sink * delta).sum((0, 2, 3))
        found = d_s @ k, d_s.mT @ q, p.mT @ d_out, d_sink
        return *found, None, None


def grouped_attention(query, key, value, sink=None, causal=False, scale=None):
    heads, (n, m) = query.shape[1], (query.shape[2], key.shape[2])
    share = heads // key.shape[1]
    k, v = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    if sink is None:
        sink = query.new_full((heads,), -torch.inf)
    hidden = torch.zeros(n, m, dtype=torch.bool)
    if causal:
        hidden = ~torch.ones(n, m, dtype=torch.bool).tril(m - n)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return Attend.apply(query, k, v, sink, hidden, scale)
