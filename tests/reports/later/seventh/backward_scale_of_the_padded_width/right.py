"""GQA, forward and backward, widths padded to 16 (as tilelang-ascend #1669 had run_bwd)."""

import torch
import torch.nn.functional as F

FEATURES = {"mask": False, "dropout": False}
ALIGN = 16


def pad(x):
    return F.pad(x, (0, -x.shape[-1] % ALIGN))


def scores(q, k, sm_scale, causal):
    (n, m) = q.shape[2], k.shape[2]
    s = q @ k.mT * sm_scale
    return (
        s.masked_fill(~torch.ones(n, m, dtype=torch.bool).tril(m - n), -torch.inf) if causal else s
    )


def run_bwd(q, k, v, do, lse, delta, causal, dim_qk):
    sm_scale = dim_qk**-0.5
    p = (scores(q, k, sm_scale, causal) - lse).exp()  # phase 1 and 2
    ds = p * (do @ v.mT - delta) * sm_scale
    return ds @ k, ds.mT @ q, p.mT @ do  # phase 3


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, causal):
        ctx.dim_qk, ctx.causal = query.shape[-1], causal
        groups = query.shape[1] // key.shape[1]
        q, k, v = pad(query), *(x.repeat_interleave(groups, 1) for x in (pad(key), value))
        s = scores(q, k, ctx.dim_qk**-0.5, causal)
        lse = s.logsumexp(-1, keepdim=True)
        safe = torch.where(lse == -torch.inf, 0.0, lse)
        out = (s - safe).exp() @ v
        ctx.save_for_backward(q, k, v, out, safe)
        ctx.kv_heads = key.shape[1]
        return out, lse[..., 0]

    @staticmethod
    def backward(ctx, d_out, d_lse):
        q, k, v, out, lse = ctx.saved_tensors
        delta = (d_out * out).sum(-1, keepdim=True) - d_lse[..., None]
        dq, dk, dv = run_bwd(q, k, v, d_out, lse, delta, ctx.causal, ctx.dim_qk)
        dk, dv = (x.unflatten(1, (ctx.kv_heads, -1)).sum(2) for x in (dk, dv))
        return dq[..., : ctx.dim_qk], dk[..., : ctx.dim_qk], dv, None


def grouped_attention(query, key, value, causal=False):
    return Attention.apply(query, key, value, causal)
