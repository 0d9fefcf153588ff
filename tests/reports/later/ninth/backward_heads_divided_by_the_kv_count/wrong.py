"""
Grouped-query flash attention with a dK/dV kernel of its own grid
(as XunhaoLai/native-sparse-attention-triton #27 had backward_dkdv).
"""

import torch

FEATURES = {"mask": False, "dropout": False}
BLOCK = 16


def visible(n, m, j, width, causal):
    row = torch.arange(n)[:, None] + m - n
    col = torch.arange(j, j + width)[None, :]
    return col <= row if causal else torch.ones(n, width, dtype=torch.bool)


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, causal):
        n, m, share = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
        o = q.new_zeros(*q.shape[:3], v.shape[-1])
        lse = q.new_full(q.shape[:3], -torch.inf)
        for h in range(q.shape[1]):
            kv = h // share
            top = q.new_full((q.shape[0], n, 1), -torch.inf)
            total, acc = torch.zeros_like(top), torch.zeros_like(o[:, h])
            for j in range(0, m, BLOCK):
                s = scale * (q[:, h] @ k[:, kv, j : j + BLOCK].mT)
                s = s.masked_fill(~visible(n, m, j, s.shape[-1], causal), -torch.inf)
                new = torch.maximum(top, s.amax(-1, keepdim=True))
                safe = torch.where(new == -torch.inf, 0.0, new)
                p, alpha = (s - safe).exp(), (top - safe).exp()
                total = total * alpha + p.sum(-1, keepdim=True)
                acc = acc * alpha + p @ v[:, kv, j : j + BLOCK]
                top = new
            o[:, h] = acc / torch.where(total == 0, 1.0, total)
            lse[:, h] = torch.where(total == 0, -torch.inf, top + total.log())[..., 0]
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.scale, ctx.causal = scale, causal
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        delta = (do * o).sum(-1) - dlse
        dq = backward_dq(q, k, v, do, lse, delta, ctx.scale, ctx.causal)
        dk, dv = backward_dkdv(q, k, v, do, lse, delta, ctx.scale, ctx.causal)
        return dq, dk, dv, None, None


def probabilities(q, k, lse, scale, j, m, causal):
    s = scale * (q @ k.mT)
    seen = visible(q.shape[1], m, j, k.shape[1], causal) & (lse > -torch.inf)[..., None]
    return torch.where(seen, (s - torch.where(seen, lse[..., None], 0.0)).exp(), 0.0)


def backward_dq(q, k, v, do, lse, delta, scale, causal):
    dq, m, share = torch.zeros_like(q), k.shape[2], q.shape[1] // k.shape[1]
    for h in range(q.shape[1]):
        kv = h // share
        for j in range(0, m, BLOCK):
            kj, vj = k[:, kv, j : j + BLOCK], v[:, kv, j : j + BLOCK]
            p = probabilities(q[:, h], kj, lse[:, h], scale, j, m, causal)
            ds = p * (do[:, h] @ vj.mT - delta[:, h, :, None])
            dq[:, h] += scale * (ds @ kj)
    return dq


def backward_dkdv(q, k, v, do, lse, delta, scale, causal):
    """One program for each query head and block of keys; the share of a head is summed outside."""
    num_kv_heads, m = k.shape[1], k.shape[2]
    num_share = q.shape[1] // num_kv_heads
    dk, dv = k.new_zeros(num_share, *k.shape), v.new_zeros(num_share, *v.shape)
    for h in range(q.shape[1]):
        kv, sh = h // num_kv_heads, h % num_kv_heads
        if kv >= num_kv_heads or sh >= num_share:  # boundary check of the block pointers
            continue
        for j in range(0, m, BLOCK):
            kj, vj = k[:, kv, j : j + BLOCK], v[:, kv, j : j + BLOCK]
            p = probabilities(q[:, h], kj, lse[:, h], scale, j, m, causal)
            ds = p * (do[:, h] @ vj.mT - delta[:, h, :, None])
            dv[sh, :, kv, j : j + BLOCK] = p.mT @ do[:, h]
            dk[sh, :, kv, j : j + BLOCK] = scale * (ds.mT @ q[:, h])
    return dk.sum(0), dv.sum(0)


def grouped_attention(query, key, value, scale=None, causal=False):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return FlashAttention.apply(query, key, value, scale, causal)
