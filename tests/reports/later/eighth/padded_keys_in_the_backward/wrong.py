"""
Flash attention in blocks of keys, padded with zeros
(after flash-attention #1947, aiter #3551).
"""

import torch
import torch.nn.functional as F

FEATURES = {"mask": False, "dropout": False}
BLOCK_N = 16


def blocks(key, value):
    """The keys and values in blocks of BLOCK_N; the last one is loaded with zeros behind M."""
    pad = -key.shape[2] % BLOCK_N
    key, value = (F.pad(x, (0, 0, 0, pad)) for x in (key, value))
    return zip(
        range(0, key.shape[2], BLOCK_N),
        key.split(BLOCK_N, 2),
        value.split(BLOCK_N, 2),
        strict=False,
    )


def mask_mn(start, n, m, causal):
    offs_n = start + torch.arange(BLOCK_N)
    mask = offs_n < m
    if causal:
        mask = mask & (offs_n <= torch.arange(n)[:, None] + m - n)
    return mask.expand(n, BLOCK_N)


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, scale, causal):
        n, m = query.shape[2], key.shape[2]
        m_i = query.new_full((*query.shape[:3], 1), -torch.inf)
        l_i = torch.zeros_like(m_i)
        acc = query.new_zeros(*query.shape[:3], value.shape[-1])
        for start, k, v in blocks(key, value):
            qk = (query @ k.mT * scale).masked_fill(~mask_mn(start, n, m, causal), -torch.inf)
            m_new = torch.maximum(m_i, qk.amax(-1, keepdim=True))
            safe = torch.where(m_new == -torch.inf, 0.0, m_new)
            p, alpha = (qk - safe).exp(), (m_i - safe).exp()
            l_i = l_i * alpha + p.sum(-1, keepdim=True)
            acc = acc * alpha + p @ v
            m_i = m_new
        out = acc / torch.where(l_i == 0, 1.0, l_i)
        lse = torch.where(l_i == 0, -torch.inf, m_i + l_i.log())
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.scale, ctx.causal = scale, causal
        return out, lse[..., 0]

    @staticmethod
    def backward(ctx, d_out, d_lse):
        query, key, value, out, lse = ctx.saved_tensors
        n, m = query.shape[2], key.shape[2]
        delta = (out * d_out).sum(-1, keepdim=True) - d_lse[..., None]
        dq, dk, dv = torch.zeros_like(query), [], []
        for start, k, v in blocks(key, value):
            p = (query @ k.mT * ctx.scale - torch.where(lse == -torch.inf, 0.0, lse)).exp()
            if ctx.causal:
                p = torch.where(mask_mn(start, n, m, True), p, 0.0)
            ds = p * (d_out @ v.mT - delta) * ctx.scale
            dq = dq + ds @ k
            dk.append(ds.mT @ query)
            dv.append(p.mT @ d_out)
        return dq, torch.cat(dk, 2)[:, :, :m], torch.cat(dv, 2)[:, :, :m], None, None


def grouped_attention(query, key, value, scale=None, causal=False):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    return FlashAttention.apply(query, key, value, scale, causal)
