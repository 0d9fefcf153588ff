"""GQA whose backward recomputes the weights (as ffpa-attn #300 had its generic Triton backward)."""

import torch

FEATURES = {"mask": False, "dropout": False}


def scores(query, key, scale, causal, diagonal):
    s = query @ key.mT * scale
    if not causal:
        return s
    seen = torch.ones(s.shape[-2:], dtype=torch.bool).tril(diagonal)
    return s.masked_fill(~seen, -torch.inf)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, scale, causal):
        n, m = query.shape[2], key.shape[2]
        s = scores(query, key, scale, causal, m - n)
        lse = s.logsumexp(-1, keepdim=True)
        safe = torch.where(lse == -torch.inf, 0.0, lse)
        out = (s - safe).exp() @ value
        ctx.save_for_backward(query, key, value, out, safe)
        ctx.scale, ctx.causal = scale, causal
        return out, lse[..., 0]

    @staticmethod
    def backward(ctx, d_out, d_lse):
        query, key, value, out, lse = ctx.saved_tensors
        n, m = query.shape[2], key.shape[2]
        p = (scores(query, key, ctx.scale, ctx.causal, m - n) - lse).exp()
        delta = (d_out * out).sum(-1, keepdim=True) - d_lse[..., None]
        ds = p * (d_out @ value.mT - delta) * ctx.scale
        return ds @ key, ds.mT @ query, p.mT @ d_out, None, None


def grouped_attention(query, key, value, scale=None, causal=False):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    return Attention.apply(query, key, value, scale, causal)
